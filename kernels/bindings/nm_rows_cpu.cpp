// SPDX-License-Identifier: Apache-2.0
// The ops of nm_rows, in which nm_vector with codes runs on a CPU where rows choose their columns.
#include <optional>
#include <string>

#include "bindings/codes.h"
#include "bindings/cpu.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "cpu/nm_rows/nm_rows.h"
#include "formats/nm_rows.h"

namespace flashsparse {
namespace {

// Positions may have any value: no kernel leaves its bounds by them.
nm_rows::Weight rows_of(const Tensor& values, const Tensor& positions,
                        const std::optional<Tensor>& scales, int64_t out, int64_t in, int64_t n,
                        int64_t m, const std::string& value_type, int64_t group) {
  check_on_cpu(values, "values");
  check_nm_shape(out, in);
  const auto pattern = check_pattern(n, m, 1);
  const ValueType type = value_type_of(value_type);
  FS_CHECK(type != ValueType::kNative, "nm_rows holds codes, not native values");
  FS_CHECK(group >= 0 && group % m == 0, "group must be 0 or a multiple of m, which is ", m,
           ", not ", group);
  check_tensor(values, "values", ScalarType::Byte, 3);
  check_tensor(positions, "positions", ScalarType::Int, 3);
  check_beside(positions, "positions", values, "values");
  const auto check_sizes = [&](const Tensor& tensor, const char* name, int64_t length) {
    FS_CHECK(
        tensor.size(0) == panels(out) && tensor.size(1) == length && tensor.size(2) == kPanelRows,
        name, " of a [", out, ", ", in, "] weight must be [", panels(out), ", ", length, ", ",
        kPanelRows, "], not [", tensor.size(0), ", ", tensor.size(1), ", ", tensor.size(2), "]");
  };
  const int64_t kept = pattern.kept(in);
  check_sizes(values, "values", code_bytes(type, kept));
  check_sizes(positions, "positions", nm_rows::position_words(kept, m));
  nm_rows::Weight weight{values.const_data_ptr<uint8_t>(),
                         words_of(positions),
                         nullptr,
                         type,
                         Dtype::kFloat32,
                         n,
                         m,
                         group};
  if (scales) {
    weight.scale_dtype = dtype_of(scales->scalar_type(), "scales");
    check_tensor(*scales, "scales", scales->scalar_type(), 3);
    check_beside(*scales, "scales", values, "values");
    check_sizes(*scales, "scales", group ? (in + group - 1) / group : 1);
    weight.scales = scales->const_data_ptr();
  }
  return weight;
}

Tensor nm_rows_unpack(const Tensor& values, const Tensor& positions,
                      const std::optional<Tensor>& scales, int64_t out, int64_t in, int64_t n,
                      int64_t m, ScalarType dtype, std::string value_type, int64_t group) {
  check_nm_dtype(dtype);
  const auto packed = rows_of(values, positions, scales, out, in, n, m, value_type, group);
  Tensor weight = empty({out, in}, dtype);
  nm_rows::unpack(packed, out, in, dtype_of(dtype, "dtype"), weight.mutable_data_ptr());
  return weight;
}

Tensor nm_rows_linear(const Tensor& x, const Tensor& values, const Tensor& positions,
                      const Tensor& scales, int64_t out, int64_t n, int64_t m,
                      ScalarType weight_dtype, std::string value_type, int64_t group,
                      const std::optional<Tensor>& bias) {
  const LinearInputs inputs(x, out, bias, values, "values");
  check_nm_dtype(weight_dtype);
  const auto packed =
      rows_of(values, positions, scales, out, inputs.in_features, n, m, value_type, group);
  Tensor y = inputs.new_y();
  nm_rows::linear(packed, {out, inputs.in_features, dtype_of(weight_dtype, "weight_dtype"),
                           inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                           y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x")});
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_rows_unpack(Tensor values, Tensor positions, Tensor? scales, int out_features, "
      "int in_features, int n, int m, ScalarType dtype, str value_type, int group=0) -> Tensor");
  m.def(
      "nm_rows_linear(Tensor x, Tensor values, Tensor positions, Tensor scales, int out_features, "
      "int n, int m, ScalarType weight_dtype, str value_type, int group=0, Tensor? bias=None) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_rows_unpack", TORCH_BOX(&nm_rows_unpack));
  m.impl("nm_rows_linear", TORCH_BOX(&nm_rows_linear));
}

}  // namespace
}  // namespace flashsparse
