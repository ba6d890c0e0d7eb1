// SPDX-License-Identifier: Apache-2.0
// The ops of tiled_bitmap: their schemas, and the CPU implementations.
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/cpu.h"
#include "bindings/interleaved_bitmap.h"
#include "bindings/linear.h"
#include "bindings/tiled_bitmap.h"
#include "bindings/tiled_csl_cpu.h"
#include "cpu/marked.h"
#include "cpu/tiled_bitmap/tiled_bitmap.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse {
namespace {

using tiled_bitmap::kLineWords;
using tiled_bitmap::kUnitCols;
using tiled_bitmap::kUnitRows;

// The widest block whose rows fit into L1, for a dense weight.
constexpr int64_t kBlockCols = 4 * kUnitCols;

void require(const std::string& error) { FS_CHECK(error.empty(), error); }

tiled_bitmap::Packed tiled_bitmap_of(const Tensor& lines, const Tensor& offsets, int64_t out,
                                     int64_t in, int item_bytes) {
  check_on_cpu(lines, "weight_packed");
  check_tiled_bitmap(lines, offsets, out, in);
  return {words_of(lines), lines.size(0), offsets.const_data_ptr<int32_t>(), out, in, item_bytes};
}

tiled_bitmap::Packed valid_tiled_bitmap(const Tensor& lines, const Tensor& offsets, int64_t out,
                                        int64_t in, int item_bytes = 2,
                                        int64_t* row_kept = nullptr) {
  const auto packed = tiled_bitmap_of(lines, offsets, out, in, item_bytes);
  require(tiled_bitmap::validate(packed, row_kept).error);
  return packed;
}

std::tuple<Tensor, Tensor> pack_blocks(cpu::Blocks blocks, int64_t rows, int64_t cols,
                                       int item_bytes = 2) {
  tiled_bitmap::Packer packer(rows, cols, std::move(blocks), item_bytes);
  const int64_t count = packer.count();
  check_line_count(count, rows, cols);
  Tensor lines = empty({count, kLineWords}, ScalarType::Int);
  Tensor offsets = empty({tiled_bitmap::units(rows, cols) + 1}, ScalarType::Int);
  packer.write(offsets.mutable_data_ptr<int32_t>(), mutable_words(lines));
  return {lines, offsets};
}

std::tuple<Tensor, Tensor> tiled_bitmap_pack(const Tensor& weight_) {
  check_on_cpu(weight_, "weight");
  const bool codes = weight_.scalar_type() == ScalarType::Char;
  codes ? check_weight_shape(weight_) : check_weight(weight_);
  const Tensor weight = as_contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  if (codes) {
    const auto* dense = weight.const_data_ptr<int8_t>();
    return pack_blocks(cpu::blocks_of(dense, rows, cols, kUnitRows, kBlockCols), rows, cols, 1);
  }
  return pack_blocks(cpu::blocks_of(bits(weight), rows, cols, kUnitRows, kBlockCols), rows, cols);
}

Tensor tiled_bitmap_validate(const Tensor& lines, const Tensor& offsets, int64_t out, int64_t in,
                             int64_t item_bits) {
  const int item_bytes = item_bytes_of(item_bits);
  const auto result = tiled_bitmap::validate(tiled_bitmap_of(lines, offsets, out, in, item_bytes));
  require(result.error);
  Tensor kept = empty({}, ScalarType::Long);
  *kept.mutable_data_ptr<int64_t>() = result.kept;
  return kept;
}

Tensor tiled_bitmap_unpack(const Tensor& lines, const Tensor& offsets, int64_t out, int64_t in,
                           ScalarType dtype, const std::optional<Tensor>& scales) {
  const bool codes = dtype == ScalarType::Char;
  if (!codes) check_weight_dtype(dtype);
  const auto packed = valid_tiled_bitmap(lines, offsets, out, in, codes || scales ? 1 : 2);
  Tensor weight = empty({out, in}, dtype);
  if (codes) {
    FS_CHECK(!scales, "codes are unpacked without scales");
    const cpu::CodeSink sink(weight.mutable_data_ptr<int8_t>(), in);
    tiled_bitmap::blocks_of(packed, 1, 1)(sink);
  } else if (scales) {
    check_row_scales(*scales, out, lines, "weight_packed");
    const cpu::CodeSink sink(weight.mutable_data_ptr(), dtype_of(dtype, "dtype"),
                             scales->const_data_ptr<float>(), in);
    tiled_bitmap::blocks_of(packed, 1, 1)(sink);
  } else {
    tiled_bitmap::unpack(packed, mutable_bits(weight));
  }
  return weight;
}

InterleavedBitmap tiled_bitmap_to_interleaved_bitmap(const Tensor& lines, const Tensor& offsets_,
                                                     int64_t out, int64_t in, int64_t item_bits) {
  const int item_bytes = item_bytes_of(item_bits);
  tiled_bitmap_of(lines, offsets_, out, in, item_bytes);  // before allocating this size
  Tensor offsets = empty({panels(out) + 1}, ScalarType::Long);
  int64_t* kept = offsets.mutable_data_ptr<int64_t>();
  const auto packed = valid_tiled_bitmap(lines, offsets_, out, in, item_bytes, kept);
  const ScalarType stored = item_bytes == 1 ? ScalarType::Char : ScalarType::Short;
  Tensor values = empty({kept[panels(out)] + kValueSlack}, stored);
  Tensor masks = empty({panels(out), column_pairs(in)}, ScalarType::Int);
  if (tiled_bitmap::to_interleaved_bitmap(packed, kept, mutable_words(masks),
                                          values.mutable_data_ptr())) {
    return {values, masks, offsets};
  }
  const ScalarType dense = item_bytes == 1 ? ScalarType::Char : ScalarType::BFloat16;
  return interleaved_bitmap_pack(
      tiled_bitmap_unpack(lines, offsets_, out, in, dense, std::nullopt));
}

std::tuple<Tensor, Tensor> interleaved_bitmap_to_tiled_bitmap(const Tensor& values,
                                                              const Tensor& masks,
                                                              const Tensor& offsets, int64_t out,
                                                              int64_t in) {
  const auto packed = valid_interleaved_bitmap(values, masks, offsets, out, in);
  FS_CHECK(values.scalar_type() != ScalarType::Int, "tiled_bitmap keeps float16 or bfloat16");
  const int item_bytes = packed.codes ? 1 : 2;
  return pack_blocks(interleaved_bitmap::blocks_of(packed, kBlockCols), out, in, item_bytes);
}

std::tuple<Tensor, Tensor> tiled_bitmap_to_tiled_csl(const Tensor& lines, const Tensor& offsets,
                                                     int64_t out, int64_t in) {
  constexpr int kRowUnits = tiled_csl::kTileRows / kUnitRows;
  const auto packed = valid_tiled_bitmap(lines, offsets, out, in);
  return tiled_csl_pack(tiled_bitmap::blocks_of(packed, kRowUnits, 1), out, in);
}

std::tuple<Tensor, Tensor> tiled_csl_to_tiled_bitmap(const Tensor& words, const Tensor& offsets,
                                                     int64_t out, int64_t in) {
  const auto packed = tiled_csl_of(words, offsets, out, in);
  require(tiled_csl::validate(packed).error);
  return pack_blocks(tiled_csl::blocks_of(packed, kUnitCols), out, in);
}

// One implementation for any number of tokens: sparse_tokens and few_tokens have no effect.
Tensor tiled_bitmap_linear(const Tensor& x, const Tensor& lines, const Tensor& offsets, int64_t out,
                           ScalarType weight_dtype, const std::optional<Tensor>& bias,
                           std::optional<int64_t> sparse_tokens, std::optional<int64_t> few_tokens,
                           const std::optional<Tensor>& scales) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_weight_dtype(weight_dtype);
  const LinearInputs inputs(x, out, bias, lines, "weight_packed");
  if (scales) check_row_scales(*scales, out, lines, "weight_packed");
  const auto packed = valid_tiled_bitmap(lines, offsets, out, inputs.in_features, scales ? 1 : 2);
  Tensor y = inputs.new_y();
  tiled_bitmap::linear(
      packed, {out, inputs.in_features, dtype_of(weight_dtype, "weight_dtype"),
               inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(), y.mutable_data_ptr(),
               dtype_of(y.scalar_type(), "x"), scales ? scales->const_data_ptr<float>() : nullptr});
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def("tiled_bitmap_pack(Tensor weight) -> (Tensor weight_packed, Tensor unit_offsets)");
  m.def(
      "tiled_bitmap_unpack(Tensor weight_packed, Tensor unit_offsets, int out_features, "
      "int in_features, ScalarType dtype, Tensor? weight_scale=None) -> Tensor");
  m.def(
      "tiled_bitmap_validate(Tensor weight_packed, Tensor unit_offsets, int out_features, "
      "int in_features, int item_bits=16) -> Tensor");
  m.def(
      "tiled_bitmap_linear(Tensor x, Tensor weight_packed, Tensor unit_offsets, int out_features, "
      "ScalarType weight_dtype, Tensor? bias=None, int? sparse_tokens=None, "
      "int? few_tokens=None, Tensor? weight_scale=None) -> Tensor");
  // In torch on a CPU (flashsparse_plugin/formats/unstructured/tiled_bitmap/ops.py).
  m.def(
      "tiled_bitmap_linear_rounded(Tensor x, Tensor weight_packed, Tensor unit_offsets, "
      "Tensor weight_scale, int out_features, ScalarType weight_dtype, str values, "
      "Tensor? bias=None, int? sparse_tokens=None, int? few_tokens=None) -> Tensor");
  m.def(
      "tiled_bitmap_to_interleaved_bitmap(Tensor weight_packed, Tensor unit_offsets, "
      "int out_features, int in_features, int item_bits=16) -> "
      "(Tensor values, Tensor masks, Tensor panel_offsets)");
  m.def(
      "tiled_bitmap_to_tiled_csl(Tensor weight_packed, Tensor unit_offsets, "
      "int out_features, int in_features) -> (Tensor weight_packed, Tensor tile_offsets)");
  m.def(
      "tiled_csl_to_tiled_bitmap(Tensor weight_packed, Tensor tile_offsets, "
      "int out_features, int in_features) -> (Tensor weight_packed, Tensor unit_offsets)");
  m.def(
      "interleaved_bitmap_to_tiled_bitmap(Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, int in_features) -> (Tensor weight_packed, Tensor unit_offsets)");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("tiled_bitmap_pack", TORCH_BOX(&tiled_bitmap_pack));
  m.impl("tiled_bitmap_unpack", TORCH_BOX(&tiled_bitmap_unpack));
  m.impl("tiled_bitmap_validate", TORCH_BOX(&tiled_bitmap_validate));
  m.impl("tiled_bitmap_linear", TORCH_BOX(&tiled_bitmap_linear));
  m.impl("tiled_bitmap_to_interleaved_bitmap", TORCH_BOX(&tiled_bitmap_to_interleaved_bitmap));
  m.impl("interleaved_bitmap_to_tiled_bitmap", TORCH_BOX(&interleaved_bitmap_to_tiled_bitmap));
  m.impl("tiled_bitmap_to_tiled_csl", TORCH_BOX(&tiled_bitmap_to_tiled_csl));
  m.impl("tiled_csl_to_tiled_bitmap", TORCH_BOX(&tiled_csl_to_tiled_bitmap));
}

}  // namespace
}  // namespace flashsparse
