// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of nm_vector and of its runtime forms, on every device. Contents are
// validated by nm_vector_validate, once, at load.
#pragma once
#include <optional>
#include <string>

#include "bindings/codes.h"
#include "bindings/packed.h"
#include "formats/nm_vector.h"

namespace flashsparse {

inline nm_vector::Pattern check_pattern(int64_t n, int64_t m, int64_t vector_length) {
  FS_CHECK(1 <= n && n <= m && m <= 256, "a pattern n:m has 1 <= n <= m <= 256, not ", n, ":", m);
  FS_CHECK(vector_length >= 1 && vector_length <= 128 && !(vector_length & (vector_length - 1)),
           "vector_length must be a power of two up to 128, not ", vector_length);
  return {n, m, vector_length};
}

inline void check_nm_dtype(ScalarType dtype) {
  FS_CHECK(is_16_bit(dtype) || dtype == ScalarType::Float,
           "weights of nm_vector are float16, bfloat16 or float32");
}

inline ScalarType nm_value_dtype(ScalarType weight_dtype) {
  return is_16_bit(weight_dtype) ? ScalarType::Short : ScalarType::Int;
}

// A weight dtype with such values, for validation, to which only the width matters.
inline ScalarType validated_dtype(const Tensor& values) {
  return values.scalar_type() == ScalarType::Int ? ScalarType::Float : ScalarType::Half;
}

// body(Value{}) with the unsigned type as wide as values of a dtype.
template <typename Body>
auto by_width(ScalarType dtype, const Body& body) {
  return dtype == ScalarType::Float || dtype == ScalarType::Int ? body(uint32_t{})
                                                                : body(uint16_t{});
}

template <typename Value>
const Value* values_of(const Tensor& tensor) {
  return static_cast<const Value*>(tensor.const_data_ptr());
}
template <typename Value>
Value* mutable_values(Tensor& tensor) {
  return static_cast<Value*>(tensor.mutable_data_ptr());
}

inline void check_nm_shape(int64_t out, int64_t in) {
  check_shape(out, in);
  FS_CHECK(in <= INT32_MAX - 256, "a weight of nm_vector has fewer columns than ", in);
}

// The tensors of a weight in nm_vector and the type of its values, as arguments of ops.
struct VectorTensors {
  const Tensor& values;
  const Tensor& index;
  const std::optional<Tensor> scales;  // of quantized values; none: unscaled
  const ValueType type;
  const int64_t group;  // columns of a row that share a scale; 0: all

  VectorTensors(const Tensor& values, const Tensor& index, const std::optional<Tensor>& scales = {},
                const std::string& type = "native", int64_t group = 0)
      : values(values), index(index), scales(scales), type(value_type_of(type)), group(group) {}

  const void* scale_data() const { return scales ? scales->const_data_ptr() : nullptr; }
};

// `dtype` is that of the weight.
inline void check_nm_vector(const VectorTensors& weight, int64_t out, int64_t in,
                            const nm_vector::Pattern& pattern, ScalarType dtype) {
  const auto& [values, index, scales, type, group] = weight;
  const bool native = type == ValueType::kNative;
  check_nm_dtype(dtype);
  check_tensor(values, "weight_packed", native ? nm_value_dtype(dtype) : ScalarType::Byte, 2);
  check_tensor(index, "weight_index", ScalarType::Byte, 2);
  check_beside(index, "weight_index", values, "weight_packed");
  check_nm_shape(out, in);
  const auto check_sizes = [&](const Tensor& tensor, const char* name, int64_t rows, int64_t cols) {
    FS_CHECK(tensor.size(0) == rows && tensor.size(1) == cols, name, " of a [", out, ", ", in,
             "] weight must be [", rows, ", ", cols, "], not [", tensor.size(0), ", ",
             tensor.size(1), "]");
  };
  const int64_t kept = pattern.kept(in);
  check_sizes(values, "weight_packed", out, native ? kept : code_bytes(type, kept));
  check_sizes(index, "weight_index", pattern.groups(out), pattern.index_bytes(in));
  if (!scales) return;
  FS_CHECK(!native, "weight_scale is for codes, and these values are native");
  FS_CHECK(group == 0 || ((group == 32 || group == 64 || group == 128) && group % pattern.m == 0),
           "group must be 0, 32, 64 or 128 and a multiple of m, which is ", pattern.m, ", not ",
           group);
  check_tensor(*scales, "weight_scale", group ? dtype : ScalarType::Float, 2);
  check_beside(*scales, "weight_scale", values, "weight_packed");
  check_sizes(*scales, "weight_scale", out, group ? (in + group - 1) / group : 1);
}

}  // namespace flashsparse
