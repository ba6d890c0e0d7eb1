// SPDX-License-Identifier: Apache-2.0
// The ops of nm_vector: their schemas, and the CPU implementations.
#include <optional>
#include <string>
#include <tuple>

#include "bindings/cpu.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "bindings/unpacked_product.h"
#include "cpu/nm_vector/nm_vector.h"

namespace flashsparse {
namespace {

nm_vector::Packed packed_of(const VectorTensors& weight, int64_t out, int64_t in,
                            const nm_vector::Pattern& pattern, ScalarType dtype) {
  return {pattern,
          out,
          in,
          dtype_of(dtype, "dtype"),
          weight.values.const_data_ptr(),
          weight.index.const_data_ptr<uint8_t>(),
          weight.type,
          weight.scale_data(),
          weight.scales ? dtype_of(weight.scales->scalar_type(), "weight_scale") : Dtype::kFloat32,
          weight.group};
}

std::tuple<Tensor, Tensor> nm_vector_pack(const Tensor& weight_, int64_t n, int64_t m,
                                          int64_t vector_length) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cpu(weight_, "weight");
  check_weight_shape(weight_);
  check_nm_dtype(weight_.scalar_type());
  const Tensor weight = as_contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  check_nm_shape(rows, cols);
  Tensor values = empty({rows, pattern.kept(cols)}, nm_value_dtype(weight.scalar_type()));
  Tensor index = empty({pattern.groups(rows), pattern.index_bytes(cols)}, ScalarType::Byte);
  const std::string error = by_width(weight.scalar_type(), [&](auto type) {
    using Value = decltype(type);
    return nm_vector::pack(values_of<Value>(weight), rows, cols, pattern,
                           mutable_values<Value>(values), index.mutable_data_ptr<uint8_t>());
  });
  FS_CHECK(error.empty(), error);
  return {values, index};
}

// Of 16-bit, 32-bit or quantized values.
Tensor nm_vector_validate(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                          int64_t n, int64_t m, int64_t vector_length, std::string value_type) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cpu(values, "weight_packed");
  const VectorTensors weight(values, index, {}, value_type);
  const ScalarType dtype = validated_dtype(values);
  check_nm_vector(weight, out, in, pattern, dtype);
  const auto verdict = nm_vector::validate(packed_of(weight, out, in, pattern, dtype));
  FS_CHECK(verdict.error.empty(), verdict.error);
  Tensor nonzeros = empty({}, ScalarType::Long);
  *nonzeros.mutable_data_ptr<int64_t>() = verdict.nonzeros;
  return nonzeros;
}

// Unpacks rows [first, first + count).
Tensor unpack_rows(const VectorTensors& weight, int64_t out, int64_t in,
                   const nm_vector::Pattern& pattern, ScalarType dtype, int64_t first,
                   int64_t count) {
  Tensor rows = empty({count, in}, dtype);
  nm_vector::unpack(packed_of(weight, out, in, pattern, dtype), first, count,
                    rows.mutable_data_ptr());
  return rows;
}

Tensor nm_vector_unpack(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType dtype,
                        const std::optional<Tensor>& scales, std::string value_type,
                        int64_t group) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cpu(values, "weight_packed");
  const VectorTensors weight(values, index, scales, value_type, group);
  check_nm_vector(weight, out, in, pattern, dtype);
  return unpack_rows(weight, out, in, pattern, dtype, 0, out);
}

// Fallback for weights without a runtime form, and for weights that are not prepared.
Tensor nm_vector_linear(const Tensor& x, const Tensor& values, const Tensor& index, int64_t out,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& scales,
                        std::string value_type, int64_t group,
                        const std::optional<Tensor>& x_scales) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cpu(values, "weight_packed");
  LinearInputs inputs(x, out, bias, values, "weight_packed");
  inputs.take_x_scales(x_scales, weight_dtype, value_type);
  const int64_t in = inputs.in_features;
  const VectorTensors weight(values, index, scales, value_type, group);
  check_nm_vector(weight, out, in, pattern, weight_dtype);
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  unpacked_product(inputs, weight_dtype, vector_length, y, [&](int64_t first, int64_t count) {
    return unpack_rows(weight, out, in, pattern, weight_dtype, first, count);
  });
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_vector_pack(Tensor weight, int n, int m, int vector_length) -> "
      "(Tensor weight_packed, Tensor weight_index)");
  m.def(
      "nm_vector_validate(Tensor weight_packed, Tensor weight_index, int out_features, "
      "int in_features, int n, int m, int vector_length, str values=\"native\") -> Tensor");
  m.def(
      "nm_vector_unpack(Tensor weight_packed, Tensor weight_index, int out_features, "
      "int in_features, int n, int m, int vector_length, ScalarType dtype, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0) -> Tensor");
  m.def(
      "nm_vector_linear(Tensor x, Tensor weight_packed, Tensor weight_index, int out_features, "
      "int n, int m, int vector_length, ScalarType weight_dtype, Tensor? bias=None, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0, Tensor? x_scales=None) "
      "-> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_vector_pack", TORCH_BOX(&nm_vector_pack));
  m.impl("nm_vector_validate", TORCH_BOX(&nm_vector_validate));
  m.impl("nm_vector_unpack", TORCH_BOX(&nm_vector_unpack));
  m.impl("nm_vector_linear", TORCH_BOX(&nm_vector_linear));
}

}  // namespace
}  // namespace flashsparse
