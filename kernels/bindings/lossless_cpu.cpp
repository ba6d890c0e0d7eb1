// SPDX-License-Identifier: Apache-2.0
// The ops of lossless: their schemas, and the CPU implementations.
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/cpu.h"
#include "bindings/linear.h"
#include "bindings/lossless.h"
#include "cpu/lossless/lossless.h"

namespace flashsparse {
namespace {

lossless::Packed lossless_of(const LosslessTensors& t, int64_t out, int64_t in) {
  check_on_cpu(t.bytes, "weight_packed");
  check_lossless(t, out, in);
  return {t.bytes.const_data_ptr<uint8_t>(),
          t.bases.const_data_ptr<uint8_t>(),
          t.offsets.const_data_ptr<int32_t>(),
          t.columns.const_data_ptr<int32_t>(),
          bits(t.exceptions),
          out,
          in};
}

// What can be read without leaving the lists, valid or not.
lossless::Packed readable_lossless(const LosslessTensors& t, int64_t out, int64_t in) {
  const auto packed = lossless_of(t, out, in);
  FS_CHECK(lossless::offsets_are_safe(packed, t.columns.numel()),
           "weight_exception_rows must rise from 0 to at most the ", t.columns.numel(),
           " exceptions that there are");
  return packed;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lossless_pack(const Tensor& weight_) {
  check_on_cpu(weight_, "weight");
  check_lossless_weight(weight_);
  const Tensor weight = as_contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  Tensor bases = empty({rows}, ScalarType::Byte);
  std::vector<int64_t> counted(rows + 1);
  lossless::choose_bases(bits(weight), rows, cols, bases.mutable_data_ptr<uint8_t>(),
                         counted.data());
  check_exception_count(counted.back(), rows, cols);
  Tensor offsets = empty({rows + 1}, ScalarType::Int);
  int32_t* offset = offsets.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i <= rows; ++i) offset[i] = static_cast<int32_t>(counted[i]);
  Tensor bytes = empty({rows, lossless::row_bytes(cols)}, ScalarType::Byte);
  Tensor columns = empty({counted.back()}, ScalarType::Int);
  Tensor exceptions = empty({counted.back()}, ScalarType::Short);
  lossless::pack(bits(weight), rows, cols, bases.const_data_ptr<uint8_t>(), offset,
                 bytes.mutable_data_ptr<uint8_t>(), columns.mutable_data_ptr<int32_t>(),
                 mutable_bits(exceptions));
  return {bytes, bases, offsets, columns, exceptions};
}

Tensor lossless_validate(const Tensor& bytes, const Tensor& bases, const Tensor& offsets,
                         const Tensor& columns, const Tensor& exceptions, int64_t out, int64_t in) {
  const LosslessTensors tensors{bytes, bases, offsets, columns, exceptions};
  const auto result = lossless::validate(lossless_of(tensors, out, in), columns.numel());
  FS_CHECK(result.error.empty(), result.error);
  Tensor nonzeros = empty({}, ScalarType::Long);
  *nonzeros.mutable_data_ptr<int64_t>() = result.nonzeros;
  return nonzeros;
}

Tensor lossless_unpack(const Tensor& bytes, const Tensor& bases, const Tensor& offsets,
                       const Tensor& columns, const Tensor& exceptions, int64_t out, int64_t in,
                       ScalarType dtype) {
  check_lossless_dtype(dtype);
  const auto packed = readable_lossless({bytes, bases, offsets, columns, exceptions}, out, in);
  Tensor weight = empty({out, in}, dtype);
  lossless::unpack(packed, mutable_bits(weight));
  return weight;
}

Tensor lossless_rows(const Tensor& ids, const Tensor& bytes, const Tensor& bases,
                     const Tensor& offsets, const Tensor& columns, const Tensor& exceptions,
                     int64_t in) {
  const int64_t out = bases.numel();
  const auto packed = readable_lossless({bytes, bases, offsets, columns, exceptions}, out, in);
  FS_CHECK(ids.scalar_type() == ScalarType::Long, "ids must be int64");
  check_beside(ids, "ids", bytes, "weight_packed");
  const Tensor wanted = as_contiguous(ids);
  const int64_t count = wanted.numel();
  const int64_t* id = wanted.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    FS_CHECK(id[i] >= 0 && id[i] < out, "ids of a weight of ", out, " rows must be below, not ",
             id[i]);
  }
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < ids.dim(); ++i) shape.push_back(ids.size(i));
  shape.push_back(in);
  Tensor rows = empty(shape, ScalarType::BFloat16);
  lossless::read_rows(packed, id, count, mutable_bits(rows));
  return rows;
}

Tensor lossless_linear(const Tensor& x, const Tensor& bytes, const Tensor& bases,
                       const Tensor& offsets, const Tensor& columns, const Tensor& exceptions,
                       int64_t out, ScalarType weight_dtype, const std::optional<Tensor>& bias) {
  check_lossless_dtype(weight_dtype);
  const LinearInputs inputs(x, out, bias, bytes, "weight_packed");
  const auto packed =
      readable_lossless({bytes, bases, offsets, columns, exceptions}, out, inputs.in_features);
  Tensor y = inputs.new_y();
  lossless::linear(packed, inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                   y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x"));
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "lossless_pack(Tensor weight) -> (Tensor weight_packed, Tensor weight_base, "
      "Tensor weight_exception_rows, Tensor weight_exception_columns, Tensor weight_exceptions)");
  m.def(
      "lossless_validate(Tensor weight_packed, Tensor weight_base, Tensor weight_exception_rows, "
      "Tensor weight_exception_columns, Tensor weight_exceptions, int out_features, "
      "int in_features) -> Tensor");
  m.def(
      "lossless_unpack(Tensor weight_packed, Tensor weight_base, Tensor weight_exception_rows, "
      "Tensor weight_exception_columns, Tensor weight_exceptions, int out_features, "
      "int in_features, ScalarType dtype) -> Tensor");
  m.def(
      "lossless_rows(Tensor ids, Tensor weight_packed, Tensor weight_base, "
      "Tensor weight_exception_rows, Tensor weight_exception_columns, Tensor weight_exceptions, "
      "int in_features) -> Tensor");
  m.def(
      "lossless_linear(Tensor x, Tensor weight_packed, Tensor weight_base, "
      "Tensor weight_exception_rows, Tensor weight_exception_columns, Tensor weight_exceptions, "
      "int out_features, ScalarType weight_dtype, Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("lossless_pack", TORCH_BOX(&lossless_pack));
  m.impl("lossless_validate", TORCH_BOX(&lossless_validate));
  m.impl("lossless_unpack", TORCH_BOX(&lossless_unpack));
  m.impl("lossless_rows", TORCH_BOX(&lossless_rows));
  m.impl("lossless_linear", TORCH_BOX(&lossless_linear));
}

}  // namespace
}  // namespace flashsparse
