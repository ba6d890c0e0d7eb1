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

template <typename Value>
nm_vector::Packed<Value> packed_of(const Tensor& values, const Tensor& index, int64_t out,
                                   int64_t in, const nm_vector::Pattern& pattern) {
  return {pattern, out, in, values_of<Value>(values), index.const_data_ptr<uint8_t>()};
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

// Of 16-bit and of 32-bit values.
Tensor nm_vector_validate(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                          int64_t n, int64_t m, int64_t vector_length) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_on_cpu(values, "weight_packed");
  const ScalarType stored =
      values.scalar_type() == ScalarType::Int ? ScalarType::Int : ScalarType::Short;
  check_nm_vector(values, index, out, in, pattern, stored);
  const auto verdict = by_width(stored, [&](auto type) {
    return nm_vector::validate(packed_of<decltype(type)>(values, index, out, in, pattern));
  });
  FS_CHECK(verdict.error.empty(), verdict.error);
  Tensor nonzeros = empty({}, ScalarType::Long);
  *nonzeros.mutable_data_ptr<int64_t>() = verdict.nonzeros;
  return nonzeros;
}

void check_readable(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                    const nm_vector::Pattern& pattern, ScalarType dtype) {
  check_on_cpu(values, "weight_packed");
  check_nm_dtype(dtype);
  check_nm_vector(values, index, out, in, pattern, nm_value_dtype(dtype));
}

// Rows [first, first + count), dense.
Tensor unpack_rows(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                   const nm_vector::Pattern& pattern, ScalarType dtype, int64_t first,
                   int64_t count) {
  Tensor weight = empty({count, in}, dtype);
  by_width(dtype, [&](auto type) {
    using Value = decltype(type);
    nm_vector::unpack(packed_of<Value>(values, index, out, in, pattern), first, count,
                      mutable_values<Value>(weight));
  });
  return weight;
}

Tensor nm_vector_unpack(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType dtype) {
  const auto pattern = check_pattern(n, m, vector_length);
  check_readable(values, index, out, in, pattern, dtype);
  return unpack_rows(values, index, out, in, pattern, dtype, 0, out);
}

// Where no runtime form fits, and for weights that are not prepared.
Tensor nm_vector_linear(const Tensor& x, const Tensor& values, const Tensor& index, int64_t out,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias) {
  const auto pattern = check_pattern(n, m, vector_length);
  const LinearInputs inputs(x, out, bias, values, "weight_packed");
  const int64_t in = inputs.in_features;
  check_readable(values, index, out, in, pattern, weight_dtype);
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  unpacked_product(inputs, weight_dtype, vector_length, y, [&](int64_t first, int64_t count) {
    return unpack_rows(values, index, out, in, pattern, weight_dtype, first, count);
  });
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_vector_pack(Tensor weight, int n, int m, int vector_length) -> "
      "(Tensor weight_packed, Tensor weight_index)");
  m.def(
      "nm_vector_validate(Tensor weight_packed, Tensor weight_index, int out_features, "
      "int in_features, int n, int m, int vector_length) -> Tensor");
  m.def(
      "nm_vector_unpack(Tensor weight_packed, Tensor weight_index, int out_features, "
      "int in_features, int n, int m, int vector_length, ScalarType dtype) -> Tensor");
  m.def(
      "nm_vector_linear(Tensor x, Tensor weight_packed, Tensor weight_index, int out_features, "
      "int n, int m, int vector_length, ScalarType weight_dtype, Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_vector_pack", TORCH_BOX(&nm_vector_pack));
  m.impl("nm_vector_validate", TORCH_BOX(&nm_vector_validate));
  m.impl("nm_vector_unpack", TORCH_BOX(&nm_vector_unpack));
  m.impl("nm_vector_linear", TORCH_BOX(&nm_vector_linear));
}

}  // namespace
}  // namespace flashsparse
