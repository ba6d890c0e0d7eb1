// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of lossless, on every device. Contents are validated by
// lossless_validate, once, at load.
#pragma once
#include "bindings/packed.h"
#include "formats/lossless.h"

namespace flashsparse {

// The tensors as ops take them, in this order. Lists of exceptions may be longer than offsets say:
// vLLM's layers are padded to share compiled graphs.
struct LosslessTensors {
  const Tensor &bytes, &bases, &offsets, &columns, &exceptions;
};

inline void check_lossless(const LosslessTensors& t, int64_t out, int64_t in) {
  check_tensor(t.bytes, "weight_packed", ScalarType::Byte, 2);
  check_tensor(t.bases, "weight_base", ScalarType::Byte, 1);
  check_tensor(t.offsets, "weight_exception_rows", ScalarType::Int, 1);
  check_tensor(t.columns, "weight_exception_columns", ScalarType::Int, 1);
  check_tensor(t.exceptions, "weight_exceptions", ScalarType::Short, 1);
  check_beside(t.bases, "weight_base", t.bytes, "weight_packed");
  check_beside(t.offsets, "weight_exception_rows", t.bytes, "weight_packed");
  check_beside(t.columns, "weight_exception_columns", t.bytes, "weight_packed");
  check_beside(t.exceptions, "weight_exceptions", t.bytes, "weight_packed");
  check_shape(out, in);
  const int64_t width = lossless::row_bytes(in);
  FS_CHECK(t.bytes.size(0) == out && t.bytes.size(1) == width, "weight_packed of a [", out, ", ",
           in, "] weight must be [", out, ", ", width, "], not [", t.bytes.size(0), ", ",
           t.bytes.size(1), "]");
  FS_CHECK(t.bases.numel() == out, "weight_base must have ", out, " entries, not ",
           t.bases.numel());
  FS_CHECK(t.offsets.numel() == out + 1, "weight_exception_rows must have ", out + 1,
           " entries, not ", t.offsets.numel());
  FS_CHECK(t.columns.numel() == t.exceptions.numel(), "there are ", t.columns.numel(),
           " weight_exception_columns and ", t.exceptions.numel(), " weight_exceptions");
}

// Checks a dense weight that is to be packed.
inline void check_lossless_weight(const Tensor& weight) {
  check_weight_shape(weight);
  FS_CHECK(weight.scalar_type() == ScalarType::BFloat16, "weight must be bfloat16");
}

// While packing, after the exceptions have been counted.
inline void check_exception_count(int64_t exceptions, int64_t out, int64_t in) {
  FS_CHECK(exceptions <= INT32_MAX, "a [", out, ", ", in, "] weight with ", exceptions,
           " exceptions overflows the int32 offsets of lossless: leave the layer dense");
}

// Packed weights are bf16, whatever x is.
inline void check_lossless_dtype(ScalarType dtype) {
  FS_CHECK(dtype == ScalarType::BFloat16, "lossless weights are bfloat16");
}

}  // namespace flashsparse
