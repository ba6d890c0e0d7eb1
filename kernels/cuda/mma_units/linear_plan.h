// SPDX-License-Identifier: Apache-2.0
// What the plans of decode kernels that multiply units by mma have in common: the numbers of a
// launch, what follows from them, and rules that they must not break.
//
// A block has row_warps x column_warps warps. In one step it multiplies row_warps * row_units
// blocks of 16 rows by column_warps blocks of 256 columns. The steps of all row tiles, tile after
// tile, are numbered linearly, and every block takes an equal range of them (stream-K).
#pragma once
#include <cstdint>

#include "formats/mma_units.h"

namespace flashsparse::mma_units {

// A compiled shape: the most tokens, the blocks of 16 rows that a warp multiplies at once, and the
// most warps of a thread block besides the one that copies x, which limit the registers of a
// thread.
struct ShapeInfo {
  int tokens, row_units, warps;
};

// `kShapes` are the format's compiled shapes.
template <const auto& kShapes>
struct LinearPlan {
  int shape;                    // index into kShapes
  int row_warps, column_warps;  // of a block
  int weight_stages, x_stages;  // of the rings in shared memory
  int blocks;

  const ShapeInfo& info() const { return kShapes[shape]; }
  int warps() const { return row_warps * column_warps; }
  int threads() const { return (warps() + 1) * 32; }
  // Row tiles of a block, and the steps along one.
  int64_t sets(int64_t rows) const {
    const int64_t units = int64_t{row_warps} * info().row_units;
    return (unit_rows(rows) + units - 1) / units;
  }
  int64_t set_steps(int64_t cols) const {
    return (unit_cols(cols) + column_warps - 1) / column_warps;
  }
  // Whether several blocks share a row tile, so that their partial sums have to be added up.
  bool shares_sets(int64_t rows) const { return sets(rows) % blocks != 0; }
  // What a launch needs besides its tensors and shared memory: arrival counters, and floats of the
  // workspace.
  int64_t arrivals(int64_t rows) const { return shares_sets(rows) ? sets(rows) * row_warps : 0; }
  int64_t partial_floats(int64_t rows) const {
    const int64_t slot = int64_t{row_warps} * info().row_units * kUnitRows * info().tokens;
    return shares_sets(rows) ? 2 * blocks * slot : 0;
  }

 protected:
  // The rule of these that a plan breaks, or null: whatever the weight,
  const char* broken_warps(int64_t tokens) const {
    constexpr int kMostStages = 64;
    constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];
    if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
    if (tokens < 1 || tokens > info().tokens) return "the shape is for other numbers of tokens";
    if (row_warps < 1 || column_warps < 1 || row_warps > info().warps ||
        column_warps > info().warps || warps() > info().warps)
      return "the shape has fewer warps";
    if (weight_stages < 1 || x_stages < 1 || weight_stages > kMostStages || x_stages > kMostStages)
      return "a ring has at least one stage";
    return nullptr;
  }

  // and for a weight of this size, where it breaks none of broken_warps().
  const char* broken_steps(int64_t rows, int64_t cols) const {
    constexpr int64_t kMostArrivals = 4096;
    const int64_t steps = sets(rows) * set_steps(cols);
    if (blocks < 1 || blocks > steps) return "a block has at least one step";
    if (steps * (int64_t{blocks} + 1) > INT32_MAX) return "there are too many steps";
    if (arrivals(rows) > kMostArrivals) return "too many sets of rows would be shared";
    return nullptr;
  }
};

}  // namespace flashsparse::mma_units
