// SPDX-License-Identifier: Apache-2.0
// The ops of nm_panels, in which nm_vector runs on a CPU where 16 rows or more share their columns.
#include <optional>
#include <string>

#include "bindings/codes.h"
#include "bindings/cpu.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "cpu/nm_panels/nm_panels.h"

namespace flashsparse {
namespace {

// That columns lie in the weight is proven by the format's check.
nm_panels::Weight panels_of(const Tensor& values, const Tensor& columns, int64_t out,
                            int64_t vector_length, ScalarType dtype,
                            const std::optional<Tensor>& scales, const std::string& value_type,
                            int64_t group_entries) {
  check_on_cpu(values, "values");
  check_nm_dtype(dtype);
  FS_CHECK(vector_length >= kPanelRows && vector_length % kPanelRows == 0,
           "vector_length must be a multiple of ", kPanelRows, ", not ", vector_length);
  const ValueType type = value_type_of(value_type);
  const bool native = type == ValueType::kNative;
  check_tensor(values, "values", native ? nm_value_dtype(dtype) : ScalarType::Byte, 3);
  check_tensor(columns, "columns", ScalarType::Int, 2);
  check_beside(columns, "columns", values, "values");
  const int64_t kept = columns.size(1), groups = (out + vector_length - 1) / vector_length;
  const int64_t steps = native ? kept : code_bytes(type, kept);
  FS_CHECK(kept >= 1 && values.size(0) == panels(out) && values.size(1) == steps &&
               values.size(2) == kPanelRows,
           "values must be [", panels(out), ", ", steps, ", ", kPanelRows, "]");
  FS_CHECK(columns.size(0) == groups, "columns must be [", groups, ", ", kept, "]");
  FS_CHECK(group_entries >= 0, "group_entries must be 0 (all) or more, not ", group_entries);
  FS_CHECK(!native || !scales, "native values have no scales");
  nm_panels::Weight weight{values.const_data_ptr(),
                           columns.const_data_ptr<int32_t>(),
                           kept,
                           vector_length / kPanelRows,
                           type,
                           nullptr,
                           Dtype::kFloat32,
                           native ? 0 : group_entries};
  if (scales) {
    const int64_t scale_groups = group_entries ? (kept + group_entries - 1) / group_entries : 1;
    weight.scale_dtype = dtype_of(scales->scalar_type(), "scales");
    check_tensor(*scales, "scales", scales->scalar_type(), 3);
    check_beside(*scales, "scales", values, "values");
    FS_CHECK(scales->size(0) == panels(out) && scales->size(1) == scale_groups &&
                 scales->size(2) == kPanelRows,
             "scales must be [", panels(out), ", ", scale_groups, ", ", kPanelRows, "]");
    weight.scales = scales->const_data_ptr();
  }
  return weight;
}

Tensor nm_panels_unpack(const Tensor& values, const Tensor& columns, int64_t out, int64_t in,
                        int64_t vector_length, ScalarType dtype,
                        const std::optional<Tensor>& scales, std::string value_type,
                        int64_t group_entries) {
  check_shape(out, in);
  const auto packed =
      panels_of(values, columns, out, vector_length, dtype, scales, value_type, group_entries);
  Tensor weight = empty({out, in}, dtype);
  nm_panels::unpack(packed, out, in, dtype_of(dtype, "dtype"), weight.mutable_data_ptr());
  return weight;
}

Tensor nm_panels_linear(const Tensor& x, const Tensor& values, const Tensor& columns, int64_t out,
                        int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& scales,
                        std::string value_type, int64_t group_entries) {
  const LinearInputs inputs(x, out, bias, values, "values");
  const auto packed = panels_of(values, columns, out, vector_length, weight_dtype, scales,
                                value_type, group_entries);
  FS_CHECK(packed.type == ValueType::kNative || packed.scales, "codes are multiplied by scales");
  Tensor y = inputs.new_y();
  nm_panels::linear(packed, {out, inputs.in_features, dtype_of(weight_dtype, "weight_dtype"),
                             inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                             y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x")});
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_panels_unpack(Tensor values, Tensor columns, int out_features, int in_features, "
      "int vector_length, ScalarType dtype, Tensor? scales=None, str value_type=\"native\", "
      "int group_entries=0) -> Tensor");
  m.def(
      "nm_panels_linear(Tensor x, Tensor values, Tensor columns, int out_features, "
      "int vector_length, ScalarType weight_dtype, Tensor? bias=None, Tensor? scales=None, "
      "str value_type=\"native\", int group_entries=0) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_panels_unpack", TORCH_BOX(&nm_panels_unpack));
  m.impl("nm_panels_linear", TORCH_BOX(&nm_panels_linear));
}

}  // namespace
}  // namespace flashsparse
