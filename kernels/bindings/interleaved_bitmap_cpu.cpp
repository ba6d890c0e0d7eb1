// SPDX-License-Identifier: Apache-2.0
// The ops of the interleaved bitmap, the runtime form of every unstructured format on a CPU.
#include <optional>
#include <string>

#include "bindings/cpu.h"
#include "bindings/interleaved_bitmap.h"
#include "bindings/linear.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse {

namespace {

template <typename Value>
InterleavedBitmap pack_values(const Tensor& weight, ScalarType stored) {
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const Value* dense = static_cast<const Value*>(weight.const_data_ptr());
  Tensor offsets = empty({panels(rows) + 1}, ScalarType::Long);
  int64_t* offset = offsets.mutable_data_ptr<int64_t>();
  interleaved_bitmap::count(dense, rows, cols, offset);
  Tensor values = empty({offset[panels(rows)] + kValueSlack}, stored);
  Tensor masks = empty({panels(rows), column_pairs(cols)}, ScalarType::Int);
  interleaved_bitmap::pack(dense, rows, cols, offset, mutable_words(masks),
                           static_cast<Value*>(values.mutable_data_ptr()));
  return {values, masks, offsets};
}

// Dtype of `values`, by the dtype of the weight; int8 stays int8.
ScalarType stored_dtype(ScalarType weight_dtype) {
  if (weight_dtype == ScalarType::Char) return weight_dtype;
  return weight_dtype == ScalarType::Float ? ScalarType::Int : ScalarType::Short;
}

}  // namespace

InterleavedBitmap interleaved_bitmap_pack(const Tensor& weight_) {
  check_on_cpu(weight_, "weight");
  check_weight_shape(weight_);
  const Tensor weight = as_contiguous(weight_);
  const ScalarType stored = stored_dtype(weight.scalar_type());
  if (stored == ScalarType::Char) return pack_values<int8_t>(weight, stored);
  dtype_of(weight.scalar_type(), "weight");
  return stored == ScalarType::Int ? pack_values<uint32_t>(weight, stored)
                                   : pack_values<uint16_t>(weight, stored);
}

namespace {

interleaved_bitmap::Weight bitmap_of(const Tensor& values, const Tensor& masks,
                                     const Tensor& offsets, int64_t out, int64_t in,
                                     ScalarType dtype,
                                     const std::optional<Tensor>& scales = std::nullopt) {
  check_on_cpu(values, "values");
  check_shape(out, in);
  const bool codes = dtype == ScalarType::Char || scales;
  check_tensor(values, "values", codes ? ScalarType::Char : stored_dtype(dtype), 1);
  if (scales) check_row_scales(*scales, out, values, "values");
  check_tensor(masks, "masks", ScalarType::Int, 2);
  check_tensor(offsets, "panel_offsets", ScalarType::Long, 1);
  check_beside(masks, "masks", values, "values");
  check_beside(offsets, "panel_offsets", values, "values");
  FS_CHECK(masks.size(0) == panels(out) && masks.size(1) == column_pairs(in), "masks of a [", out,
           ", ", in, "] weight must be [", panels(out), ", ", column_pairs(in), "], not [",
           masks.size(0), ", ", masks.size(1), "]");
  FS_CHECK(offsets.numel() == panels(out) + 1, "panel_offsets must have ", panels(out) + 1,
           " entries");
  const int64_t* offset = offsets.const_data_ptr<int64_t>();
  // More is allowed: vLLM's layers are padded to share compiled graphs.
  const int64_t promised = offset[panels(out)];
  FS_CHECK(promised >= 0 && promised <= values.numel() - kValueSlack, "values has ", values.numel(),
           " entries, panel_offsets promises ", promised, " and ", kValueSlack, " more");
  return {out,
          in,
          words_of(masks),
          values.const_data_ptr(),
          offset,
          dtype == ScalarType::Char ? Dtype::kFloat32 : dtype_of(dtype, "weight_dtype"),
          codes,
          scales ? scales->const_data_ptr<float>() : nullptr};
}

}  // namespace

interleaved_bitmap::Weight valid_interleaved_bitmap(const Tensor& values, const Tensor& masks,
                                                    const Tensor& offsets, int64_t out,
                                                    int64_t in) {
  const ScalarType stored = values.scalar_type();
  const ScalarType dtype =  // any dtype of this width
      stored == ScalarType::Int    ? ScalarType::Float
      : stored == ScalarType::Char ? stored
                                   : ScalarType::BFloat16;
  const auto packed = bitmap_of(values, masks, offsets, out, in, dtype);
  const std::string error = interleaved_bitmap::validate(packed, values.numel());
  FS_CHECK(error.empty(), error);
  return packed;
}

namespace {

Tensor interleaved_bitmap_validate(const Tensor& values, const Tensor& masks, const Tensor& offsets,
                                   int64_t out, int64_t in) {
  const auto packed = valid_interleaved_bitmap(values, masks, offsets, out, in);
  Tensor nonzeros = empty({}, ScalarType::Long);
  *nonzeros.mutable_data_ptr<int64_t>() = packed.panel_offsets[panels(out)];
  return nonzeros;
}

Tensor interleaved_bitmap_unpack(const Tensor& values, const Tensor& masks, const Tensor& offsets,
                                 int64_t out, int64_t in, ScalarType dtype,
                                 const std::optional<Tensor>& scales) {
  const auto packed = bitmap_of(values, masks, offsets, out, in, dtype, scales);
  Tensor weight = empty({out, in}, dtype);
  if (dtype == ScalarType::Char) {
    interleaved_bitmap::unpack_codes(packed, weight.mutable_data_ptr<int8_t>());
  } else {
    interleaved_bitmap::unpack(packed, weight.mutable_data_ptr());
  }
  return weight;
}

Tensor interleaved_bitmap_linear(const Tensor& x, const Tensor& values, const Tensor& masks,
                                 const Tensor& offsets, int64_t out, ScalarType weight_dtype,
                                 const std::optional<Tensor>& bias,
                                 const std::optional<Tensor>& scales) {
  const LinearInputs inputs(x, out, bias, values, "values");
  FS_CHECK(weight_dtype != ScalarType::Char, "weight_dtype is that of the unpacked weight");
  const auto weight =
      bitmap_of(values, masks, offsets, out, inputs.in_features, weight_dtype, scales);
  Tensor y = inputs.new_y();
  interleaved_bitmap::linear(weight, inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                             y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x"));
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "interleaved_bitmap_pack(Tensor weight) -> "
      "(Tensor values, Tensor masks, Tensor panel_offsets)");
  m.def(
      "interleaved_bitmap_validate(Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, int in_features) -> Tensor");
  m.def(
      "interleaved_bitmap_unpack(Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, int in_features, ScalarType dtype, Tensor? weight_scale=None) -> Tensor");
  m.def(
      "interleaved_bitmap_linear(Tensor x, Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, ScalarType weight_dtype, Tensor? bias=None, Tensor? weight_scale=None) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("interleaved_bitmap_pack", TORCH_BOX(&interleaved_bitmap_pack));
  m.impl("interleaved_bitmap_validate", TORCH_BOX(&interleaved_bitmap_validate));
  m.impl("interleaved_bitmap_unpack", TORCH_BOX(&interleaved_bitmap_unpack));
  m.impl("interleaved_bitmap_linear", TORCH_BOX(&interleaved_bitmap_linear));
}

}  // namespace
}  // namespace flashsparse
