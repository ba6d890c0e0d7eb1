// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap on CUDA, except for its product: argument checks, allocation, launches on the
// current stream.
//
// Ops that synchronize: tiled_bitmap_pack, which needs the number of lines to allocate, and
// tiled_bitmap_validate.
#include "bindings/tiled_bitmap_cuda.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "bindings/offsets_cuda.h"
#include "formats/tiled_bitmap_errors.h"

namespace flashsparse {
namespace {

using torch::stable::accelerator::DeviceGuard;

std::tuple<Tensor, Tensor> tiled_bitmap_pack(const Tensor& weight_) {
  check_on_cuda(weight_, "weight");
  const bool codes = weight_.scalar_type() == ScalarType::Char;
  codes ? check_weight_shape(weight_) : check_weight(weight_);
  const int item_bytes = codes ? 1 : 2;
  const int64_t rows = weight_.size(0), cols = weight_.size(1);
  // Checked before memory is allocated: every unit has at least its head.
  const int64_t units = tiled_bitmap::units(rows, cols);
  check_line_count(units * tiled_bitmap::kHeadLines, rows, cols);
  const DeviceGuard guard(weight_.get_device_index());
  // Int8 values as the floats that the kernels read.
  const Tensor weight =
      torch::stable::contiguous(codes ? in_dtype(weight_, ScalarType::Half) : weight_);
  const cudaStream_t stream = current_stream(weight);
  Tensor lengths = allocate_like(weight, {units}, ScalarType::Int);
  STD_CUDA_CHECK(cuda::tiled_bitmap_count(bits(weight), rows, cols, item_bytes,
                                          lengths.mutable_data_ptr<int32_t>(), stream));
  const auto [offsets, num_lines] = offsets_of(lengths);
  check_line_count(num_lines, rows, cols);
  Tensor lines = allocate_like(weight, {num_lines, tiled_bitmap::kLineWords}, ScalarType::Int);
  STD_CUDA_CHECK(cuda::tiled_bitmap_pack(bits(weight), rows, cols, item_bytes,
                                         offsets.const_data_ptr<int32_t>(), mutable_words(lines),
                                         stream));
  return {lines, offsets};
}

Tensor tiled_bitmap_unpack(const Tensor& lines, const Tensor& offsets, int64_t out, int64_t in,
                           ScalarType dtype, const std::optional<Tensor>& scales) {
  if (dtype == ScalarType::Char) {
    FS_CHECK(!scales, "codes are unpacked without scales");
  } else {
    check_weight_dtype(dtype);
  }
  check_on_cuda(lines, "weight_packed");
  const BitmapUnits units{lines, offsets, scales};
  units.check(out, in);
  const DeviceGuard guard(lines.get_device_index());
  return units.unpack_rows(0, out, in, dtype);
}

Tensor tiled_bitmap_validate(const Tensor& lines, const Tensor& offsets, int64_t out, int64_t in,
                             int64_t item_bits) {
  const int item_bytes = item_bytes_of(item_bits);
  check_readable_units(lines, offsets, out, in);
  const DeviceGuard guard(lines.get_device_index());
  Tensor found = allocate_like(lines, {offsets.numel() - 1}, ScalarType::Int);
  STD_CUDA_CHECK(cuda::tiled_bitmap_validate(
      words_of(lines), lines.size(0), offsets.const_data_ptr<int32_t>(), out, in, item_bytes,
      found.mutable_data_ptr<int32_t>(), current_stream(lines)));
  const auto verdicts = read_back<int32_t>(found);
  const auto bad = std::find_if(verdicts.begin(), verdicts.end(), [](int32_t v) { return v < 0; });
  if (bad != verdicts.end()) {
    // Offsets first: if they are invalid, units may have been validated with the lines of others.
    const std::string error = tiled_bitmap::offsets_error(
        read_back<int32_t>(offsets).data(), offsets.numel() - 1, lines.size(0), item_bytes);
    fail(error.empty() ? tiled_bitmap::unit_error(bad - verdicts.begin(), *bad) : error);
  }
  const int64_t kept = std::accumulate(verdicts.begin(), verdicts.end(), int64_t{0});
  Tensor result = allocate_like(lines, {}, ScalarType::Long);
  STD_CUDA_CHECK(cudaMemcpyAsync(result.mutable_data_ptr(), &kept, sizeof kept,
                                 cudaMemcpyHostToDevice, current_stream(lines)));
  return result;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_bitmap_pack", TORCH_BOX(&tiled_bitmap_pack));
  m.impl("tiled_bitmap_unpack", TORCH_BOX(&tiled_bitmap_unpack));
  m.impl("tiled_bitmap_validate", TORCH_BOX(&tiled_bitmap_validate));
}

}  // namespace
}  // namespace flashsparse
