// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of tiled_bitmap, on every device. Contents are validated by
// tiled_bitmap_validate, once, at load.
#pragma once
#include <tuple>

#include "bindings/launch.h"
#include "bindings/packed.h"
#include "cuda/tiled_bitmap/linear_plan.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse {

template <>
struct LaunchNumbers<tiled_bitmap::LinearPlan> {
  static constexpr const char* kFields =
      "shape row_warps column_warps scratch_quarters x_stages ring_lines blocks is_early";
  static auto of(tiled_bitmap::LinearPlan& plan) {
    return std::tie(plan.shape, plan.row_warps, plan.column_warps, plan.scratch_quarters,
                    plan.x_stages, plan.ring_lines, plan.blocks, plan.is_early);
  }
};

template <>
struct LaunchNumbers<tiled_bitmap::WgmmaPlan> {
  static constexpr const char* kFields = "shape down depth stages clusters ring_lines";
  static auto of(tiled_bitmap::WgmmaPlan& plan) {
    return std::tie(plan.shape, plan.down, plan.depth, plan.stages, plan.clusters, plan.ring_lines);
  }
};

inline void check_tiled_bitmap(const Tensor& lines, const Tensor& offsets, int64_t out,
                               int64_t in) {
  check_tensor(lines, "weight_packed", ScalarType::Int, 2);
  check_tensor(offsets, "unit_offsets", ScalarType::Int, 1);
  check_beside(offsets, "unit_offsets", lines, "weight_packed");
  check_shape(out, in);
  FS_CHECK(lines.size(1) == tiled_bitmap::kLineWords, "weight_packed must be [lines, ",
           tiled_bitmap::kLineWords, "], not [", lines.size(0), ", ", lines.size(1), "]");
  const int64_t units = tiled_bitmap::units(out, in);
  FS_CHECK(offsets.numel() == units + 1, "unit_offsets of a [", out, ", ", in, "] weight has ",
           units + 1, " entries, not ", offsets.numel());
  FS_CHECK(lines.size(0) <= INT32_MAX, "a [", out, ", ", in, "] weight of ", lines.size(0),
           " packed lines is beyond the int32 offsets of tiled_bitmap: split the layer or leave it "
           "dense");
}

// Bytes of an item, from the arguments of ops: 16 bits, or 8 for int8.
inline int item_bytes_of(int64_t item_bits) {
  FS_CHECK(item_bits == 16 || item_bits == 8, "an item has 16 or 8 bits, not ", item_bits);
  return static_cast<int>(item_bits / 8);
}

// While packing, after the lines have been counted.
inline void check_line_count(int64_t lines, int64_t out, int64_t in) {
  FS_CHECK(lines <= INT32_MAX, "a [", out, ", ", in, "] weight with ", lines,
           " packed lines overflows the int32 offsets of tiled_bitmap: split the layer or leave it "
           "dense");
}

}  // namespace flashsparse
