// SPDX-License-Identifier: Apache-2.0
// nm_vector on CUDA. Packing and validation synchronize, to report weights that break the pattern
// and tensors that are invalid.
#include <optional>
#include <string>
#include <tuple>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "bindings/unpacked_product_cuda.h"
#include "cuda/nm_vector/nm_vector.h"
#include "cuda/nm_vector/pack_tile.h"
#include "cuda/nm_vector/unpack_tile.h"
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
  const auto breaches = read_back<int32_t>(found);
  const auto breach =
      nm_vector::first_breach(breaches.data(), tile, tiles, tile.across(pattern, cols));
  FS_CHECK(!breach, nm_vector::breach_error(pattern, *breach, rows, cols));
  return {values, index};
}

Tensor nm_vector_validate(const Tensor& values_, const Tensor& index, int64_t out, int64_t in,
                          int64_t n, int64_t m, int64_t vector_length, std::string value_type) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cuda(values_, "weight_packed");
  check_nm_vector({values_, index, {}, value_type}, out, in, pattern, validated_dtype(values_));
  const DeviceGuard guard(values_.get_device_index());
  const bool aligned = reinterpret_cast<uintptr_t>(values_.const_data_ptr()) % 16 == 0;
  const Tensor values = aligned ? values_ : torch::stable::clone(values_);
  const auto fields =
      nm_vector::Fields::of(value_type_of(value_type), static_cast<int>(values.element_size()));
  const int64_t blocks = nm_vector::validate_blocks(fields, pattern, out, in);
  Tensor found = allocate_like(values, {blocks, 2}, ScalarType::Long);
  STD_CUDA_CHECK(cuda::nm_vector_validate(
      values.const_data_ptr(), index.const_data_ptr<uint8_t>(), fields, pattern, out, in,
      static_cast<nm_vector::Found*>(found.mutable_data_ptr()), current_stream(values)));
  const auto of_blocks = read_back<nm_vector::Found>(found);
  const auto [nonzeros, broken] = nm_vector::join(of_blocks.data(), blocks);
  FS_CHECK(broken != nm_vector::kNanFound, nm_vector::kNanCode);
  const int64_t windows = pattern.windows(in);
  FS_CHECK(broken == nm_vector::kNothingBroken,
           nm_vector::index_error(pattern, broken / windows, broken % windows, out, in));
  Tensor result = allocate_like(values, {}, ScalarType::Long);
  STD_CUDA_CHECK(cudaMemcpyAsync(result.mutable_data_ptr(), &nonzeros, sizeof nonzeros,
                                 cudaMemcpyHostToDevice, current_stream(values)));
  return result;
}

// Unpacks rows [first, first + count); `first` is a multiple of the pattern's length.
Tensor unpack_rows(const VectorTensors& weight, int64_t in, const nm_vector::Pattern& pattern,
                   ScalarType dtype, int64_t first, int64_t count) {
  const auto row_of = [&](const Tensor& tensor, int64_t row) {
    return static_cast<const char*>(tensor.const_data_ptr()) +
           row * tensor.size(1) * tensor.element_size();
  };
  FS_CHECK(nm_vector::UnpackTiles::of(pattern, in).count(count) <= INT32_MAX, "a [", count, ", ",
           in, "] weight is too large to be unpacked on a GPU: unpack it on the CPU");
  const cuda::NmVectorRows rows{
      row_of(weight.values, first),
      weight.index.const_data_ptr<uint8_t>() + first / pattern.length * weight.index.size(1),
      weight.type, weight.scales ? row_of(*weight.scales, first) : nullptr, weight.group};
  Tensor dense = allocate_like(weight.values, {count, in}, dtype);
  STD_CUDA_CHECK(cuda::nm_vector_unpack(rows, pattern, count, in, dtype_of(dtype, "dtype"),
                                        dense.mutable_data_ptr(), current_stream(weight.values)));
  return dense;
}

Tensor nm_vector_unpack(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType dtype,
                        const std::optional<Tensor>& scales, std::string value_type,
                        int64_t group) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cuda(values, "weight_packed");
  const VectorTensors weight(values, index, scales, value_type, group);
  check_nm_vector(weight, out, in, pattern, dtype);
  const DeviceGuard guard(values.get_device_index());
  return unpack_rows(weight, in, pattern, dtype, 0, out);
}

// Fallback for weights without a runtime form, and for weights that are not prepared.
Tensor nm_vector_linear(const Tensor& x, const Tensor& values, const Tensor& index, int64_t out,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& scales,
                        std::string value_type, int64_t group,
                        const std::optional<Tensor>& x_scales) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cuda(values, "weight_packed");
  const DeviceGuard guard(values.get_device_index());
  LinearInputs inputs(x, out, bias, values, "weight_packed");
  inputs.take_x_scales(x_scales, weight_dtype, value_type);
  const VectorTensors weight(values, index, scales, value_type, group);
  check_nm_vector(weight, out, inputs.in_features, pattern, weight_dtype);
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  unpacked_product_cuda(inputs, weight_dtype, vector_length, y, [&](int64_t first, int64_t count) {
    return unpack_rows(weight, inputs.in_features, pattern, weight_dtype, first, count);
  });
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_vector_pack", TORCH_BOX(&nm_vector_pack));
  m.impl("nm_vector_validate", TORCH_BOX(&nm_vector_validate));
  m.impl("nm_vector_unpack", TORCH_BOX(&nm_vector_unpack));
  m.impl("nm_vector_linear", TORCH_BOX(&nm_vector_linear));
}

}  // namespace
}  // namespace flashsparse
