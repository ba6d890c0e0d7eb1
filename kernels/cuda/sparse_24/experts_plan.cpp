// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/experts_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/mma_units/linear_shared.h"
#include "cuda/sparse_24/linear_shared.h"

namespace flashsparse::sparse_24 {

namespace {

constexpr int kMostColumnWarps = 4;  // with more, two stages of x do not fit
constexpr int kMostStages = 8;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of the decode kernel: bytes of the weight, and of weight and x, per microsecond and SM; an H200
// reads the former from memory.
constexpr double kMemory = 34.6e3, kL2 = 49.3e3;
constexpr double kClock = 1.9e3;  // clocks of a sub-core per microsecond
constexpr double kSet = 0.08;     // microseconds of the epilogue of a row tile
// Clocks of a sub-core for mma.sp of 8 tokens by a 16x256 block with its loads, and to dequantize
// the block.
constexpr double kMmaClocks = 31.3, kWideningClocks = 95;

double cost(const ExpertsPlan& plan, const ExpertsProduct& product, const Gpu& gpu) {
  const double slots = static_cast<double>(product.slots());
  const double experts = static_cast<double>(product.experts);
  const double chosen = std::min(1.0, static_cast<double>(product.top_k) / experts);
  const double active = experts * (1 - std::pow(1 - chosen, static_cast<double>(product.tokens)));
  const int tokens = plan.info().tokens;
  // An expert with many slots has half a block more than full ones.
  const double each = slots / active / tokens;
  const double slot_blocks = active * std::max(1.0, each + (each > 0.5 ? 0.5 : 0));
  const double sets = static_cast<double>(plan.sets(product));
  const double mine = std::ceil(slot_blocks * sets / gpu.multiprocessors);
  const int64_t cols = product.cols;
  const double set_units =
      static_cast<double>(plan.row_warps) * plan.info().row_units * unit_cols(cols);
  const double weight = set_units * product.unit.bytes();
  const double x = static_cast<double>(cols) * 2 * std::min<double>(tokens, slots / active) /
                   (plan.x_resident(cols) ? sets : 1);
  const int warps = plan.warps(cols);
  const double sub_core = static_cast<double>(ceil_div(warps, 4)) / warps;
  const double widening = product.unit.type == ValueType::kNative ? 0 : kWideningClocks;
  const double clocks = set_units * sub_core * (tokens / 8.0 * kMmaClocks + widening);
  // Bytes in flight: with few, memory waits.
  const double ring = static_cast<double>(plan.weight_stages) * warps * plan.info().row_units *
                      product.unit.bytes();
  const double waits = 1 + 0.2 * std::max(0.0, 1 - ring / 96e3);
  const double set =
      std::max({weight / kMemory * waits, (weight + 1.2 * x) / kL2, clocks / kClock});
  return mine * (set + kSet / std::max(1, plan.weight_stages - 1));
}

}  // namespace

int experts_column_warps(int64_t cols) {
  const int64_t units = unit_cols(cols);
  for (int warps = kMostColumnWarps; warps > 1; --warps) {
    if (warps <= units && 4 * (ceil_div(units, warps) * warps - units) <= units) return warps;
  }
  return 1;
}

int64_t ExpertsPlan::shared_bytes(const ExpertsProduct& product) const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps,
                           experts_column_warps(product.cols), x_stages,
                           ring_bytes(product.unit, info().row_units, weight_stages), 2)
      .bytes;
}

const char* ExpertsPlan::broken_rule(const ExpertsProduct& product, const Gpu& gpu) const {
  constexpr int64_t kMostCols = 1 << 20, kMostRows = 1 << 24;
  if (!experts_are_compiled(product.unit))
    return "experts are compiled for native values, fp8_e4m3 (group 0 or 128), int8 (group 0) and "
           "int4 (group 32 or 128)";
  if (shape < 0 || shape >= kExpertsShapeCount) return "there is no such shape";
  if (product.rows < 1 || product.cols < 1 || product.tokens < 1 || product.top_k < 1 ||
      product.experts < 1)
    return "there is nothing to multiply";
  if (product.experts > experts::kMostExperts) return "there are more than 1024 experts";
  if (product.cols > kMostCols || product.rows > kMostRows) return "an expert is too large";
  // Places in the weight have 32 bits, and count 16 bytes.
  const int64_t units = product.expert_unit_rows() * unit_cols(product.cols);
  if (product.experts * units > UINT32_MAX / (product.unit.bytes() / kLaneBytes))
    return "the experts are larger than 64 GB";
  if (row_warps < 1 || row_warps > info().warps || warps(product.cols) > info().warps)
    return "the shape has fewer warps";
  if (weight_stages < 1 || x_stages < 1 || weight_stages > kMostStages || x_stages > 1024)
    return "a ring has at least one stage";
  if (shared_bytes(product) > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t most = experts::most_blocks(product.slots(), product.experts, info().tokens);
  const int64_t tiles = most * sets(product);
  if (blocks < 1) return "there is no thread block";
  if (product.slots() > INT32_MAX / 4 || most * info().tokens > INT32_MAX / 4 ||
      tiles > INT32_MAX / (int64_t{blocks} + 1))
    return "there are too many tokens for one launch";
  return nullptr;
}

experts::Cut ExpertsPlan::cut(const ExpertsProduct& product, bool early) const {
  const int64_t cols = product.cols;
  return {row_warps,
          experts_column_warps(cols),
          weight_stages,
          x_stages,
          static_cast<int>(product.expert_unit_rows()),
          static_cast<int>(unit_cols(cols)),
          static_cast<int>(sets(product)),
          static_cast<int>(set_steps(cols)),
          product.gated,
          x_resident(cols),
          early,
          Divider(product.gated ? static_cast<uint32_t>(product.top_k) : 1),
          Divider(experts_column_warps(cols)),
          Divider(static_cast<uint32_t>(sets(product))),
          Divider(blocks)};
}

namespace {

// Gives x these stages, and the weight what remains; false if that is less than two.
bool give_stages(ExpertsPlan& plan, const ExpertsProduct& product, const Gpu& gpu, int x_stages) {
  plan.x_stages = x_stages;
  for (plan.weight_stages = kMostStages; plan.weight_stages >= 2; --plan.weight_stages) {
    if (plan.shared_bytes(product) <= gpu.shared_bytes) return true;
  }
  return false;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const ExpertsProduct& product, int shape, const Gpu& gpu, const Body& body) {
  const auto steps = static_cast<int>(ExpertsPlan::set_steps(product.cols));
  const int column_warps = experts_column_warps(product.cols);
  for (int row_warps = 1; row_warps * column_warps <= kExpertsShapes[shape].warps; ++row_warps) {
    // All columns of x twice, or once, or a ring.
    for (const int x_stages : {2 * steps, steps, 3, 2}) {
      ExpertsPlan plan{shape, row_warps, 0, 0, gpu.multiprocessors};
      if (x_stages > 1024 || !give_stages(plan, product, gpu, x_stages)) continue;
      if (!plan.broken_rule(product, gpu)) body(plan, cost(plan, product, gpu));
    }
  }
}

}  // namespace

Priced<ExpertsPlan> price_experts(const ExpertsProduct& product, int shape, const Gpu& gpu) {
  const std::array<int64_t, 11> key{product.rows,
                                    product.cols,
                                    product.gated,
                                    product.tokens,
                                    product.top_k,
                                    product.experts,
                                    static_cast<int64_t>(product.unit.type),
                                    product.unit.group,
                                    shape,
                                    gpu.multiprocessors,
                                    gpu.shared_bytes};
  return remembered(key, [&] {
    return cheapest<ExpertsPlan>(
        [&](const auto& body) { for_each_plan(product, shape, gpu, body); },
        ExpertsPlan{shape, 1, 2, 2, 1});  // that breaks the rule which others break, too
  });
}

std::vector<Priced<ExpertsPlan>> list_experts(const ExpertsProduct& product, int shape,
                                              const Gpu& gpu) {
  return listed<ExpertsPlan>([&](const auto& body) { for_each_plan(product, shape, gpu, body); });
}

int experts_shape(const ExpertsProduct& up, const ExpertsProduct& down, const Gpu& gpu) {
  int shape = 0;
  while (shape + 1 < kExpertsShapeCount &&
         2 * up.slots() > kExpertsShapes[shape].tokens * up.experts)
    ++shape;
  while (shape > 0 &&
         (price_experts(up, shape, gpu).cost < 0 || price_experts(down, shape, gpu).cost < 0))
    --shape;
  return shape;
}

}  // namespace flashsparse::sparse_24
