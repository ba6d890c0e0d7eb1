// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of Tiled-CSL, on every device. Contents are validated by
// tiled_csl_validate, once, at load.
#pragma once
#include <tuple>

#include "bindings/launch.h"
#include "bindings/packed.h"
#include "cuda/tiled_csl/linear_plan.h"
#include "formats/tiled_csl.h"

namespace flashsparse {

template <>
struct LaunchNumbers<tiled_csl::LinearPlan> {
  static constexpr const char* kFields = "shape blocks";
  static auto of(tiled_csl::LinearPlan& plan) { return std::tie(plan.shape, plan.blocks); }
};

// Why the kernel could not run by a plan; null where it can.
inline const char* broken_rule(const tiled_csl::LinearPlan& plan, int64_t rows, int64_t cols,
                               int64_t tokens, const Gpu& gpu) {
  if (plan.shape < 0 || plan.shape >= tiled_csl::kLinearShapeCount) return "there is no such shape";
  const tiled_csl::LinearShapeInfo& shape = tiled_csl::kLinearShapes[plan.shape];
  if (tokens > shape.tokens) return "the shape is for fewer tokens";
  if (shape.hopper != gpu.has_wgmma())
    return shape.hopper ? "the shape is for compute capability 9.0"
                        : "the shape is for any compute capability but 9.0";
  if (!linear::fits_stream_k(rows, cols)) return "the weight has too many rows or tiles";
  const int64_t tiles = linear::tile_rows(rows) * linear::tile_cols(cols);
  if (plan.blocks > tiles) return "there are more blocks than tiles";
  if (plan.blocks * int64_t{linear::kMaxRange} < tiles) return "a block has 1,024 tiles at most";
  return nullptr;
}

inline void check_tiled_csl(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_tensor(words, "weight_packed", ScalarType::Int, 1);
  check_tensor(offsets, "tile_offsets", ScalarType::Int, 1);
  check_beside(offsets, "tile_offsets", words, "weight_packed");
  check_shape(out, in);
  const int64_t tiles = tiled_csl::tile_rows(out) * tiled_csl::tile_cols(in);
  FS_CHECK(offsets.numel() == tiles + 1, "tile_offsets of a [", out, ", ", in, "] weight has ",
           tiles + 1, " entries, not ", offsets.numel());
  FS_CHECK(words.numel() <= INT32_MAX && tiles <= INT32_MAX, "a [", out, ", ", in, "] weight of ",
           words.numel(), " packed words is beyond the int32 offsets of ",
           "tiled_csl: split the layer or leave it dense");
}

// While packing, after the words have been counted.
inline void check_word_count(int64_t words, int64_t out, int64_t in) {
  FS_CHECK(words <= INT32_MAX, "a [", out, ", ", in, "] weight with ", words,
           " packed words overflows the int32 offsets of tiled_csl: split the ",
           "layer or leave it dense");
}

}  // namespace flashsparse
