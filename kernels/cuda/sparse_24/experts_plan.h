// SPDX-License-Identifier: Apache-2.0
// How sparse_24's grouped kernel divides a product of a mixture's experts: decided on the host from
// sizes alone, so that a CUDA graph can hold the decision for any routing.
//
// The warps of a thread block are row_warps x column_warps, as in the decode kernel. column_warps
// follow from the columns alone: with them, and with whole row tiles for a thread block, each sum
// is made in the same order whatever the batch.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/experts/arguments.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "cuda/sparse_24/linear_plan.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// The compiled shapes, as in FS_SPARSE_24_SHAPES. A warp has two blocks of 16 rows, of gate and up.
// The number of tokens is that of slots in a block of slots.
#define FS_SPARSE_24_EXPERTS_SHAPES(X) \
  X(8, 2, 15)                          \
  X(16, 2, 11)                         \
  X(32, 2, 11)

#define FS_SPARSE_24_SHAPE_INFO(tokens, row_units, warps) {tokens, row_units, warps},
inline constexpr ShapeInfo kExpertsShapes[] = {
    FS_SPARSE_24_EXPERTS_SHAPES(FS_SPARSE_24_SHAPE_INFO)};
#undef FS_SPARSE_24_SHAPE_INFO
inline constexpr int kExpertsShapeCount = sizeof kExpertsShapes / sizeof kExpertsShapes[0];

// The value types that the grouped kernel is compiled for.
constexpr bool experts_are_compiled(UnitLayout unit) {
  switch (unit.type) {
    case ValueType::kInt4:
      return unit.group == 32 || unit.group == 128;
    case ValueType::kFp8:
      return unit.group == 0 || unit.group == 128;
    default:
      return unit.group == 0;
  }
}

// A product of the experts of a mixture: of the slots of `tokens` tokens.
struct ExpertsProduct {
  int64_t rows, cols;  // of y and x; a gated weight has twice as many rows
  bool gated;
  int64_t tokens, top_k, experts;
  UnitLayout unit{};

  int64_t slots() const { return tokens * top_k; }
  int64_t expert_unit_rows() const { return unit_rows(rows) * (gated ? 2 : 1); }
  // What tells it from others, for remembered().
  std::array<int64_t, 9> key(int shape) const {
    return {rows,       cols, gated, tokens, top_k, experts, static_cast<int64_t>(unit.type),
            unit.group, shape};
  }
};

// The same of a layer.
inline std::array<int64_t, 18> layer_key(const ExpertsProduct& up, const ExpertsProduct& down) {
  std::array<int64_t, 18> both{};
  const auto first = up.key(0), last = down.key(0);
  std::copy(first.begin(), first.end(), both.begin());
  std::copy(last.begin(), last.end(), both.begin() + first.size());
  return both;
}

// The rule of any kernel that a product breaks, or null.
const char* broken_experts(const ExpertsProduct& product);
inline constexpr const char* kExpertsValues =
    "experts are compiled for native values, fp8_e4m3 (group 0 or 128), int8 (group 0) and int4 "
    "(group 32 or 128)";

// What is expected where each expert is chosen as often.
struct ExpertsRouting {
  double active;       // experts that some token has
  double each;         // slots of one of these
  double slot_blocks;  // of all experts

  ExpertsRouting(const ExpertsProduct& product, int block_slots);
};

// The shape for both products of a layer, whose slots are in the same blocks, and their cost: -1,
// at shape 0, if there is no launch.
struct PricedLayer {
  int shape = 0;
  double cost = -1;
};

// The first of the cheapest of `shapes` shapes; price(product, shape, gpu) has the launch of a
// product and its cost.
template <class Price>
PricedLayer cheapest_shape(int shapes, const Price& price, const ExpertsProduct& up,
                           const ExpertsProduct& down, const Gpu& gpu) {
  PricedLayer best;
  for (int shape = 0; shape < shapes; ++shape) {
    const double first = price(up, shape, gpu).cost, last = price(down, shape, gpu).cost;
    if (first < 0 || last < 0 || (best.cost >= 0 && first + last >= best.cost)) continue;
    best = {shape, first + last};
  }
  return best;
}

// Warps along the columns: as many as possible of which few are without a unit in the last step.
int experts_column_warps(int64_t cols);

// A layer by this kernel.
PricedLayer price_experts_layer(const ExpertsProduct& up, const ExpertsProduct& down,
                                const Gpu& gpu);

struct ExpertsPlan {
  int shape;                    // index into kExpertsShapes
  int row_warps;                // of a thread block
  int weight_stages, x_stages;  // x is resident if x_stages is a multiple of set_steps()
  int blocks;

  const ShapeInfo& info() const { return kExpertsShapes[shape]; }
  int warps(int64_t cols) const { return row_warps * experts_column_warps(cols); }
  int threads(int64_t cols) const { return (warps(cols) + 1) * 32; }
  // Row tiles of an expert, and the steps along one.
  int64_t sets(const ExpertsProduct& product) const {
    const int64_t units = int64_t{row_warps} * info().row_units;
    return (product.expert_unit_rows() + units - 1) / units;
  }
  static int64_t set_steps(int64_t cols) {
    const int warps = experts_column_warps(cols);
    return (unit_cols(cols) + warps - 1) / warps;
  }
  bool x_resident(int64_t cols) const { return x_stages % set_steps(cols) == 0; }
  int64_t shared_bytes(const ExpertsProduct& product) const;

  // The rule that the plan breaks for a product, or null. A launch needs null.
  const char* broken_rule(const ExpertsProduct& product, const Gpu& gpu) const;

  // The parameters of a launch with a plan that breaks no rule. `early`: whether it begins before
  // the kernel that writes x has ended, which must not be the one that writes the order.
  experts::Cut cut(const ExpertsProduct& product, bool early) const;
};

// The launch for a product and its cost in microseconds on average over routings that choose each
// expert as often; then every launch that it was compared with.
Priced<ExpertsPlan> price_experts(const ExpertsProduct& product, int shape, const Gpu& gpu);
std::vector<Priced<ExpertsPlan>> list_experts(const ExpertsProduct& product, int shape,
                                              const Gpu& gpu);

}  // namespace flashsparse::sparse_24
