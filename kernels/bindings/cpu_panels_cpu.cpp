// SPDX-License-Identifier: Apache-2.0
// The ops of nm_panels and nm_rows, in which nm_vector runs on a CPU, and of hybrid_panels, in
// which hybrid_24 does.
#include "bindings/cpu.h"

#include <optional>
#include <string>

#include "bindings/codes.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "cpu/cpu_panels/cpu_panels.h"
#include "formats/cpu_panels.h"

namespace flashsparse {
namespace {

using cpu_panels::Weight;
using Scales = std::optional<Tensor>;

void check_panels(const Tensor& tensor, const char* name, int64_t out, int64_t in, int64_t length) {
  FS_CHECK(
      tensor.size(0) == panels(out) && tensor.size(1) == length && tensor.size(2) == kPanelRows,
      name, " of a [", out, ", ", in, "] weight must be [", panels(out), ", ", length, ", ",
      kPanelRows, "], not [", tensor.size(0), ", ", tensor.size(1), ", ", tensor.size(2), "]");
}

// The values, `kept` entries a row, and the scales of codes.
Weight weight_of(const Tensor& values, const Scales& scales, int64_t out, int64_t in, int64_t kept,
                 ScalarType dtype, ValueType type, int64_t group_entries) {
  const bool native = type == ValueType::kNative;
  check_on_cpu(values, "values");
  check_nm_dtype(dtype);
  check_tensor(values, "values", native ? nm_value_dtype(dtype) : ScalarType::Byte, 3);
  check_panels(values, "values", out, in, native ? kept : code_bytes(type, kept));
  Weight weight{values.const_data_ptr(), type, kept};
  if (native) {
    FS_CHECK(!scales, "native values have no scales");
    return weight;
  }
  weight.group_entries = group_entries;
  if (!scales) return weight;
  const int64_t groups = group_entries ? (kept + group_entries - 1) / group_entries : 1;
  weight.scale_dtype = dtype_of(scales->scalar_type(), "scales");
  check_tensor(*scales, "scales", scales->scalar_type(), 3);
  check_beside(*scales, "scales", values, "values");
  check_panels(*scales, "scales", out, in, groups);
  weight.scales = scales->const_data_ptr();
  return weight;
}

// That columns lie in the weight is proven by the format's check.
Weight panels_of(const Tensor& values, const Tensor& columns, int64_t out, int64_t in,
                 int64_t vector_length, ScalarType dtype, const Scales& scales,
                 const std::string& value_type, int64_t group_entries) {
  FS_CHECK(vector_length >= kPanelRows && vector_length % kPanelRows == 0,
           "vector_length must be a multiple of ", kPanelRows, ", not ", vector_length);
  FS_CHECK(group_entries >= 0, "group_entries must be 0 (all) or more, not ", group_entries);
  check_tensor(columns, "columns", ScalarType::Int, 2);
  check_beside(columns, "columns", values, "values");
  const int64_t kept = columns.size(1), vectors = (out + vector_length - 1) / vector_length;
  FS_CHECK(kept >= 1 && columns.size(0) == vectors, "columns must be [", vectors,
           ", 1 or more], not [", columns.size(0), ", ", kept, "]");
  Weight weight =
      weight_of(values, scales, out, in, kept, dtype, value_type_of(value_type), group_entries);
  weight.columns = columns.const_data_ptr<int32_t>();
  weight.vector_panels = vector_length / kPanelRows;
  return weight;
}

// Positions may have any value: no kernel leaves its bounds by them.
Weight rows_of(const Tensor& values, const Tensor& positions, const Scales& scales, int64_t out,
               int64_t in, int64_t n, int64_t m, ScalarType dtype, const std::string& value_type,
               int64_t group) {
  check_nm_shape(out, in);
  const auto pattern = check_pattern(n, m, 1);
  const ValueType type = value_type_of(value_type);
  FS_CHECK(type != ValueType::kNative, "nm_rows holds codes, not native values");
  FS_CHECK(group >= 0 && group % m == 0, "group must be 0 or a multiple of m, which is ", m,
           ", not ", group);
  const int64_t kept = pattern.kept(in);
  Weight weight = weight_of(values, scales, out, in, kept, dtype, type, group / m * n);
  check_tensor(positions, "positions", ScalarType::Int, 3);
  check_beside(positions, "positions", values, "values");
  check_panels(positions, "positions", out, in, cpu_panels::position_words(kept, m));
  weight.positions = words_of(positions);
  weight.n = n;
  weight.m = m;
  return weight;
}

// Kinds and positions may have any value: lengths of streams are checked against the kinds.
Weight hybrid_of(const Tensor& values, const Tensor& positions, const Tensor& kinds,
                 const Scales& scales, int64_t out, int64_t in, ScalarType dtype,
                 const std::string& value_type, int64_t group) {
  check_nm_shape(out, in);
  check_nm_dtype(dtype);
  Weight weight{values.const_data_ptr(), value_type_of(value_type), 4 * cpu_panels::windows_of(in)};
  FS_CHECK(weight.type != ValueType::kNative, "hybrid_panels holds codes, not native values");
  FS_CHECK(group == 0 || group == 32 || group == 64 || group == 128,
           "group must be 0, 32, 64 or 128, not ", group);
  check_on_cpu(values, "values");
  check_tensor(values, "values", ScalarType::Byte, 2);
  check_tensor(positions, "positions", ScalarType::Int, 2);
  check_beside(positions, "positions", values, "values");
  check_tensor(kinds, "kinds", ScalarType::Byte, 2);
  check_beside(kinds, "kinds", values, "values");
  const int64_t units = cpu_panels::units_of(in);
  weight.panels = panels(out);
  FS_CHECK(kinds.size(0) == weight.panels && kinds.size(1) == units, "kinds of a [", out, ", ", in,
           "] weight must be [", weight.panels, ", ", units, "], not [", kinds.size(0), ", ",
           kinds.size(1), "]");
  weight.kinds = kinds.const_data_ptr<uint8_t>();
  int64_t steps = 0, words = 0;
  for (int64_t p = 0; p < weight.panels; ++p) {
    const auto sizes = cpu_panels::hybrid_sizes(weight.kinds + p * units, in);
    steps += code_bytes(weight.type, sizes.entries);
    words += sizes.words;
  }
  FS_CHECK(values.size(0) >= steps && values.size(1) == kPanelRows, "values must be [", steps, ", ",
           kPanelRows, "] or more, not [", values.size(0), ", ", values.size(1), "]");
  FS_CHECK(positions.size(0) >= words && positions.size(1) == kPanelRows, "positions must be [",
           words, ", ", kPanelRows, "] or more, not [", positions.size(0), ", ", positions.size(1),
           "]");
  weight.positions = words_of(positions);
  weight.n = weight.m = 4;
  weight.group_entries = group;
  if (!scales) return weight;
  weight.scale_dtype = dtype_of(scales->scalar_type(), "scales");
  check_tensor(*scales, "scales", scales->scalar_type(), 3);
  check_beside(*scales, "scales", values, "values");
  check_panels(*scales, "scales", out, in, group ? (in + group - 1) / group : 1);
  weight.scales = scales->const_data_ptr();
  return weight;
}

Tensor unpacked(const Weight& packed, int64_t out, int64_t in, ScalarType dtype) {
  Tensor weight = empty({out, in}, dtype);
  cpu_panels::unpack(packed, out, in, dtype_of(dtype, "dtype"), weight.mutable_data_ptr());
  return weight;
}

Tensor product(const Weight& packed, const LinearInputs& inputs, int64_t out, ScalarType dtype) {
  Tensor y = inputs.new_y();
  cpu_panels::linear(packed, {out, inputs.in_features, dtype_of(dtype, "weight_dtype"),
                              inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                              y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x")});
  return y;
}

Tensor nm_panels_unpack(const Tensor& values, const Tensor& columns, int64_t out, int64_t in,
                        int64_t vector_length, ScalarType dtype, const Scales& scales,
                        std::string value_type, int64_t group_entries) {
  check_shape(out, in);
  return unpacked(
      panels_of(values, columns, out, in, vector_length, dtype, scales, value_type, group_entries),
      out, in, dtype);
}

Tensor nm_panels_linear(const Tensor& x, const Tensor& values, const Tensor& columns, int64_t out,
                        int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, const Scales& scales,
                        std::string value_type, int64_t group_entries) {
  const LinearInputs inputs(x, out, bias, values, "values");
  const Weight packed = panels_of(values, columns, out, inputs.in_features, vector_length,
                                  weight_dtype, scales, value_type, group_entries);
  FS_CHECK(packed.type == ValueType::kNative || packed.scales, "codes are multiplied by scales");
  return product(packed, inputs, out, weight_dtype);
}

Tensor nm_rows_unpack(const Tensor& values, const Tensor& positions, const Scales& scales,
                      int64_t out, int64_t in, int64_t n, int64_t m, ScalarType dtype,
                      std::string value_type, int64_t group) {
  return unpacked(rows_of(values, positions, scales, out, in, n, m, dtype, value_type, group), out,
                  in, dtype);
}

Tensor nm_rows_linear(const Tensor& x, const Tensor& values, const Tensor& positions,
                      const Tensor& scales, int64_t out, int64_t n, int64_t m,
                      ScalarType weight_dtype, std::string value_type, int64_t group,
                      const std::optional<Tensor>& bias) {
  const LinearInputs inputs(x, out, bias, values, "values");
  const Weight packed = rows_of(values, positions, scales, out, inputs.in_features, n, m,
                                weight_dtype, value_type, group);
  return product(packed, inputs, out, weight_dtype);
}

Tensor hybrid_panels_unpack(const Tensor& values, const Tensor& positions, const Tensor& kinds,
                            const Scales& scales, int64_t out, int64_t in, ScalarType dtype,
                            std::string value_type, int64_t group) {
  return unpacked(hybrid_of(values, positions, kinds, scales, out, in, dtype, value_type, group),
                  out, in, dtype);
}

Tensor hybrid_panels_linear(const Tensor& x, const Tensor& values, const Tensor& positions,
                            const Tensor& kinds, const Tensor& scales, int64_t out,
                            ScalarType weight_dtype, std::string value_type, int64_t group,
                            const std::optional<Tensor>& bias) {
  const LinearInputs inputs(x, out, bias, values, "values");
  const Weight packed = hybrid_of(values, positions, kinds, scales, out, inputs.in_features,
                                  weight_dtype, value_type, group);
  return product(packed, inputs, out, weight_dtype);
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
  m.def(
      "nm_rows_unpack(Tensor values, Tensor positions, Tensor? scales, int out_features, "
      "int in_features, int n, int m, ScalarType dtype, str value_type, int group=0) -> Tensor");
  m.def(
      "nm_rows_linear(Tensor x, Tensor values, Tensor positions, Tensor scales, int out_features, "
      "int n, int m, ScalarType weight_dtype, str value_type, int group=0, Tensor? bias=None) -> "
      "Tensor");
  m.def(
      "hybrid_panels_unpack(Tensor values, Tensor positions, Tensor kinds, Tensor? scales, "
      "int out_features, int in_features, ScalarType dtype, str value_type, int group=0) -> "
      "Tensor");
  m.def(
      "hybrid_panels_linear(Tensor x, Tensor values, Tensor positions, Tensor kinds, "
      "Tensor scales, int out_features, ScalarType weight_dtype, str value_type, int group=0, "
      "Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("nm_panels_unpack", TORCH_BOX(&nm_panels_unpack));
  m.impl("nm_panels_linear", TORCH_BOX(&nm_panels_linear));
  m.impl("nm_rows_unpack", TORCH_BOX(&nm_rows_unpack));
  m.impl("nm_rows_linear", TORCH_BOX(&nm_rows_linear));
  m.impl("hybrid_panels_unpack", TORCH_BOX(&hybrid_panels_unpack));
  m.impl("hybrid_panels_linear", TORCH_BOX(&hybrid_panels_linear));
}

}  // namespace
}  // namespace flashsparse
