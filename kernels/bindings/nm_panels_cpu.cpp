// SPDX-License-Identifier: Apache-2.0
// The ops of nm_panels, in which nm_vector runs on a CPU where 16 rows or more share their columns.
#include <optional>

#include "bindings/cpu.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "cpu/nm_panels/nm_panels.h"

namespace flashsparse {
namespace {

// That columns lie in the weight is proven by the format's check.
nm_panels::Weight panels_of(const Tensor& values, const Tensor& columns, int64_t out,
                            int64_t vector_length, ScalarType dtype) {
  check_on_cpu(values, "values");
  check_nm_dtype(dtype);
  FS_CHECK(vector_length >= kPanelRows && vector_length % kPanelRows == 0,
           "vector_length must be a multiple of ", kPanelRows, ", not ", vector_length);
  check_tensor(values, "values", nm_value_dtype(dtype), 3);
  check_tensor(columns, "columns", ScalarType::Int, 2);
  check_beside(columns, "columns", values, "values");
  const int64_t kept = columns.size(1), groups = (out + vector_length - 1) / vector_length;
  FS_CHECK(values.size(0) == panels(out) && values.size(1) == kept && values.size(2) == kPanelRows,
           "values must be [", panels(out), ", ", kept, ", ", kPanelRows, "]");
  FS_CHECK(columns.size(0) == groups, "columns must be [", groups, ", ", kept, "]");
  return {values.const_data_ptr(), columns.const_data_ptr<int32_t>(), kept,
          vector_length / kPanelRows};
}

Tensor nm_panels_unpack(const Tensor& values, const Tensor& columns, int64_t out, int64_t in,
                        int64_t vector_length, ScalarType dtype) {
  check_shape(out, in);
  const auto packed = panels_of(values, columns, out, vector_length, dtype);
  Tensor weight = empty({out, in}, dtype);
  nm_panels::unpack(packed, out, in, weight.element_size(), weight.mutable_data_ptr());
  return weight;
}

Tensor nm_panels_linear(const Tensor& x, const Tensor& values, const Tensor& columns, int64_t out,
                        int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias) {
  const LinearInputs inputs(x, out, bias, values, "values");
  const auto packed = panels_of(values, columns, out, vector_length, weight_dtype);
  Tensor y = inputs.new_y();
  nm_panels::linear(packed, {out, inputs.in_features, dtype_of(weight_dtype, "weight_dtype"),
                             inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                             y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x")});
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_panels_unpack(Tensor values, Tensor columns, int out_features, int in_features, "
      "int vector_length, ScalarType dtype) -> Tensor");
  m.def(
      "nm_panels_linear(Tensor x, Tensor values, Tensor columns, int out_features, "
      "int vector_length, ScalarType weight_dtype, Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_panels_unpack", TORCH_BOX(&nm_panels_unpack));
  m.impl("nm_panels_linear", TORCH_BOX(&nm_panels_linear));
}

}  // namespace
}  // namespace flashsparse
