// SPDX-License-Identifier: Apache-2.0
// nm_vector on CUDA: packing. It waits for the device, to learn whether the weight follows the
// pattern.
#include <tuple>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/nm_vector.h"
#include "cuda/nm_vector/nm_vector.h"
#include "cuda/nm_vector/pack_tile.h"
#include "formats/nm_vector_errors.h"

namespace flashsparse {
namespace {

using torch::stable::accelerator::DeviceGuard;

std::tuple<Tensor, Tensor> nm_vector_pack(const Tensor& weight_, int64_t n, int64_t m,
                                          int64_t vector_length) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cuda(weight_, "weight");
  check_weight_shape(weight_);
  check_nm_dtype(weight_.scalar_type());
  const int64_t rows = weight_.size(0), cols = weight_.size(1);
  check_nm_shape(rows, cols);
  const auto tile = nm_vector::PackTile::of(pattern);
  const int64_t tiles = tile.tiles(pattern, rows, cols);
  FS_CHECK(tiles <= INT32_MAX, "a [", rows, ", ", cols,
           "] weight is too large to be packed on a GPU: pack it on the CPU");
  const DeviceGuard guard(weight_.get_device_index());
  const Tensor weight = torch::stable::contiguous(weight_);
  const ScalarType dtype = nm_value_dtype(weight.scalar_type());
  Tensor values = allocate_like(weight, {rows, pattern.kept(cols)}, dtype);
  Tensor index =
      allocate_like(weight, {pattern.groups(rows), pattern.index_bytes(cols)}, ScalarType::Byte);
  Tensor found = allocate_like(weight, {tiles}, ScalarType::Int);
  by_width(dtype, [&](auto type) {
    using Value = decltype(type);
    STD_CUDA_CHECK(cuda::nm_vector_pack(values_of<Value>(weight), rows, cols, pattern,
                                        mutable_values<Value>(values),
                                        index.mutable_data_ptr<uint8_t>(),
                                        found.mutable_data_ptr<int32_t>(), current_stream(weight)));
  });
  std::vector<int32_t> breaches(tiles);
  read_back(found, breaches.data(), tiles * sizeof breaches[0]);
  const auto breach =
      nm_vector::first_breach(breaches.data(), tile, tiles, tile.across(pattern, cols));
  FS_CHECK(!breach, nm_vector::breach_error(pattern, *breach, rows, cols));
  return {values, index};
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_vector_pack", TORCH_BOX(&nm_vector_pack));
}

}  // namespace
}  // namespace flashsparse
