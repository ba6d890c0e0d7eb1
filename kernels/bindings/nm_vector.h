// SPDX-License-Identifier: Apache-2.0
// What the ops of nm_vector, and of the forms that it runs in, ask of their arguments on every
// device. What the tensors hold is proven by nm_vector_validate, once, at load.
#pragma once
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

// body(Value{}) with the type in which values of a dtype travel.
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

inline void check_nm_vector(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                            const nm_vector::Pattern& pattern, ScalarType value_dtype) {
  check_tensor(values, "weight_packed", value_dtype, 2);
  check_tensor(index, "weight_index", ScalarType::Byte, 2);
  check_beside(index, "weight_index", values, "weight_packed");
  check_nm_shape(out, in);
  const int64_t kept = pattern.kept(in), groups = pattern.groups(out);
  FS_CHECK(values.size(0) == out && values.size(1) == kept, "weight_packed of a [", out, ", ", in,
           "] weight must be [", out, ", ", kept, "], not [", values.size(0), ", ", values.size(1),
           "]");
  FS_CHECK(index.size(0) == groups && index.size(1) == pattern.index_bytes(in),
           "weight_index of a [", out, ", ", in, "] weight must be [", groups, ", ",
           pattern.index_bytes(in), "], not [", index.size(0), ", ", index.size(1), "]");
}

}  // namespace flashsparse
