// SPDX-License-Identifier: Apache-2.0
// Argument checks of the CUDA ops of tiled_bitmap, and how they unpack rows.
#pragma once
#include <optional>

#include "bindings/cuda.h"
#include "bindings/tiled_bitmap.h"
#include "cuda/tiled_bitmap/tiled_bitmap.h"

namespace flashsparse {

// Checks for every reader. Offsets and lines are validated by tiled_bitmap_validate, once: reading
// an offset here would synchronize.
inline void check_readable_units(const Tensor& lines, const Tensor& offsets, int64_t out,
                                 int64_t in) {
  check_on_cuda(lines, "weight_packed");
  check_tiled_bitmap(lines, offsets, out, in);
  FS_CHECK(reinterpret_cast<uintptr_t>(lines.const_data_ptr()) % 16 == 0,
           "weight_packed must start on 16 bytes: pass a tensor of its own and not a slice, ",
           "e.g. weight_packed.clone()");
}

// A weight's tensors. With scales of rows, items are int8 values.
struct BitmapUnits {
  const Tensor& lines;
  const Tensor& offsets;
  const std::optional<Tensor>& scales;

  // Checks for every reader of a weight of this size.
  void check(int64_t out, int64_t in) const {
    check_readable_units(lines, offsets, out, in);
    if (scales) check_row_scales(*scales, out, lines, "weight_packed");
  }
  const float* scale_data() const { return scales ? scales->const_data_ptr<float>() : nullptr; }

  // Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of
  // kUnitRows. int8 gives the unscaled values.
  Tensor unpack_rows(int64_t first, int64_t rows, int64_t in, ScalarType dtype) const {
    const bool as_codes = dtype == ScalarType::Char;
    Tensor weight = allocate_like(lines, {rows, in}, as_codes ? ScalarType::Half : dtype);
    const int32_t* const offset = first_offset(first, in);
    const cudaStream_t stream = current_stream(lines);
    if (!as_codes && !scales) {
      STD_CUDA_CHECK(cuda::tiled_bitmap_unpack(words_of(lines), lines.size(0), offset, rows, in,
                                               mutable_bits(weight), stream));
      return weight;
    }
    STD_CUDA_CHECK(cuda::tiled_bitmap_unpack_codes(
        words_of(lines), lines.size(0), offset, scales ? scale_data() + first : nullptr, rows, in,
        dtype == ScalarType::BFloat16, mutable_bits(weight), stream));
    return in_dtype(weight, dtype);
  }

  // Unpacks such rows to int8 values [..., stride], zero-padded to a multiple of kUnitRows, in the
  // order of columns of quantized x, whose stride is `stride`.
  Tensor unpack_beside_x(int64_t first, int64_t rows, int64_t in, int64_t stride) const {
    const int64_t padded = tiled_bitmap::unit_rows(rows) * tiled_bitmap::kUnitRows;
    Tensor codes = allocate_like(lines, {padded, stride}, ScalarType::Char);
    STD_CUDA_CHECK(cuda::tiled_bitmap_unpack_beside_x(
        words_of(lines), lines.size(0), first_offset(first, in), rows, in, stride,
        codes.mutable_data_ptr(), current_stream(lines)));
    return codes;
  }

 private:
  // Offsets of the units of rows from `first` on.
  const int32_t* first_offset(int64_t first, int64_t in) const {
    return offsets.const_data_ptr<int32_t>() +
           first / tiled_bitmap::kUnitRows * tiled_bitmap::unit_cols(in);
  }
};

}  // namespace flashsparse
