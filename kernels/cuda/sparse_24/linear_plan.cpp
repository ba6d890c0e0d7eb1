// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/linear_plan.h"

#include <array>

#include "cuda/mma_units/linear_search.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/plan/search.h"
#include "cuda/sparse_24/linear_shared.h"

namespace flashsparse::sparse_24 {

int64_t LinearPlan::shared_bytes() const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps, column_warps, x_stages,
                           ring_bytes(unit, info().row_units, weight_stages), x_bytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int64_t kMostCols = 1 << 27;  // byte offsets in a row of 16x256 blocks have 32 bits
  if (const char* const rule = broken_warps(tokens)) return rule;
  if (x_bytes != 2 && (x_bytes != 1 || unit.group != 0 ||
                       (unit.type != ValueType::kFp8 && unit.type != ValueType::kInt8)))
    return "x is 16 bits, or codes of 8 bits where the values are, with scales of rows";
  if (x_bytes == 1 && unit.type == ValueType::kFp8 && !gpu.has_fp8_mma())
    return "the GPU does not multiply fp8 by mma: it needs compute capability 8.9 or 12.0";
  if (x_bytes == 1 && unit.type == ValueType::kInt8 && cols > kMostInt8Cols)
    return "int32 has room for the sums of 262144 columns of int8";
  if (!is_compiled(info(), unit, x_bytes)) return "values of this type have no such shape";
  if (cols > kMostCols) return "there are too many columns";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  return broken_steps(rows, cols);
}

namespace {

// The cost of a plan, fitted to 9,920 launches of 24 layers with 1, 8 and 16 tokens on an H200,
// after another kernel (sweep_24_few.csv): of those measured its choices are on average 1.4%
// slower than the fastest for native values and 4.0% for int4, and 3 to 6% for layers that it was
// not fitted to. Eight bits are fitted to 1,920 later launches of 16 layers with 8 and 16 tokens
// (sweep_24_few_8_bits.csv): 2.3%, and 3.1% with one token. The ratios are much the same on other
// GPUs. W8A8 has the rates of quantized values times 16-bit x, with half the bytes of x and half
// the MMAs: not fitted.
constexpr mma_units::LinearRates kNativeRates = {
    35.8e3, 47.5e3, 1110, 7.2, 0, 0, 0.021, 0.092, 0.86, 4.4, 82e3, 2.4, 0.18, 0.56, 0.026};
constexpr mma_units::LinearRates kEightBitRates = {36.8e3, 50e3, 1060,  32.5, 0,    0,    0.325, 0,
                                                   1.63,   2.36, 535e3, 0.3,  0.19, 0.36, 0};
constexpr mma_units::LinearRates kInt4Rates = {
    32.4e3, 52.4e3, 1070, 10.2, 95, 0.18, 0.21, 0.0099, 0.92, 1.89, 370e3, 1.08, 0.22, 0.27, 0.016};

const mma_units::LinearRates& linear_rates(UnitLayout unit) {
  return unit.type == ValueType::kNative ? kNativeRates
         : bits_of(unit.type) == 4       ? kInt4Rates
                                         : kEightBitRates;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                   int x_bytes, const Body& body) {
  mma_units::for_each_linear(
      LinearPlan{0, 1, 1, 0, 0, 1, unit, x_bytes}, kShapes, linear_rates(unit), rows, cols, tokens,
      gpu, [&](const ShapeInfo& info) { return is_compiled(info, unit, x_bytes); }, body);
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                UnitLayout unit, int x_bytes) {
  const std::array<int64_t, 6> key{rows,       cols,   tokens, static_cast<int64_t>(unit.type),
                                   unit.group, x_bytes};
  return remembered(key, gpu, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, x_bytes, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, UnitLayout unit, int x_bytes) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, x_bytes, body); });
}

}  // namespace flashsparse::sparse_24
