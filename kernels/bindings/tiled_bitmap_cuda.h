// SPDX-License-Identifier: Apache-2.0
// What the CUDA ops of tiled_bitmap ask of a weight, and how they unpack its rows.
#pragma once
#include "bindings/cuda.h"
#include "bindings/tiled_bitmap.h"
#include "cuda/tiled_bitmap/tiled_bitmap.h"

namespace flashsparse {

// What every reader asks. That offsets and lines are valid is proven by tiled_bitmap_validate,
// once: reading an offset here would wait for the device.
inline void check_readable_units(const Tensor& lines, const Tensor& offsets, int64_t out,
                                 int64_t in) {
  check_on_cuda(lines, "weight_packed");
  check_tiled_bitmap(lines, offsets, out, in);
  FS_CHECK(reinterpret_cast<uintptr_t>(lines.const_data_ptr()) % 16 == 0,
           "weight_packed must start on 16 bytes: pass a tensor of its own and not a slice, ",
           "e.g. weight_packed.clone()");
}

// Rows [first, first + rows) of a weight with `in` columns; first is a multiple of kUnitRows.
inline Tensor unpack_unit_rows(const Tensor& lines, const Tensor& offsets, int64_t first,
                               int64_t rows, int64_t in, ScalarType dtype) {
  Tensor weight = allocate_like(lines, {rows, in}, dtype);
  const int64_t first_unit = first / tiled_bitmap::kUnitRows * tiled_bitmap::unit_cols(in);
  STD_CUDA_CHECK(cuda::tiled_bitmap_unpack(words_of(lines), lines.size(0),
                                           offsets.const_data_ptr<int32_t>() + first_unit, rows, in,
                                           mutable_bits(weight), current_stream(lines)));
  return weight;
}

}  // namespace flashsparse
