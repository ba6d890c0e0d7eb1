// SPDX-License-Identifier: Apache-2.0
// How sparse_24's grouped kernel divides a product of a mixture's experts: decided on the host from
// sizes alone, so that a CUDA graph can hold the decision for any routing.
//
// The warps of a thread block are row_warps x column_warps, as in the decode kernel. column_warps
// follow from the columns alone: with them, and with whole row tiles for a thread block, each sum
// is made in the same order whatever the batch.
#pragma once
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

// The sum of the costs of a layer's products; -1 if one has no launch.
constexpr double both_costs(double up, double down) { return up < 0 || down < 0 ? -1 : up + down; }

// The first of the cheapest of `shapes` shapes and its cost; shape 0 at cost -1 if none has any.
struct PricedShape {
  int shape = 0;
  double cost = -1;
};
template <class Cost>
PricedShape cheapest_shape(int shapes, const Cost& cost) {
  PricedShape best;
  for (int shape = 0; shape < shapes; ++shape) {
    const double own = cost(shape);
    if (own >= 0 && (best.cost < 0 || own < best.cost)) best = {shape, own};
  }
  return best;
}

// Warps along the columns: as many as possible of which few are without a unit in the last step.
int experts_column_warps(int64_t cols);

// The shape for both products of a layer, whose slots are in the same blocks: that of the least
// cost.
int experts_shape(const ExpertsProduct& up, const ExpertsProduct& down, const Gpu& gpu);

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
