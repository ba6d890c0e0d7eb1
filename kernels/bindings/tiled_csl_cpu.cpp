// SPDX-License-Identifier: Apache-2.0
// The ops of Tiled-CSL: their schemas, and the CPU implementations.
#include "bindings/tiled_csl_cpu.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/cpu.h"
#include "bindings/interleaved_bitmap.h"
#include "bindings/linear.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse {

tiled_csl::Packed tiled_csl_of(const Tensor& words, const Tensor& offsets, int64_t out,
                               int64_t in) {
  check_on_cpu(words, "weight_packed");
  check_tiled_csl(words, offsets, out, in);
  return {words_of(words), words.numel(), offsets.const_data_ptr<int32_t>(), out, in};
}

std::tuple<Tensor, Tensor> tiled_csl_pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols) {
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  std::vector<int64_t> counted(tiles + 1);
  tiled_csl::count(blocks, rows, cols, counted.data());
  check_word_count(counted.back(), rows, cols);
  Tensor offsets = empty({tiles + 1}, ScalarType::Int);
  int32_t* offset = offsets.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i <= tiles; ++i) offset[i] = static_cast<int32_t>(counted[i]);
  Tensor words = empty({counted.back()}, ScalarType::Int);
  tiled_csl::pack(blocks, rows, cols, offset, mutable_words(words));
  return {words, offsets};
}

namespace {

void require(const std::string& error) { FS_CHECK(error.empty(), error); }

std::tuple<Tensor, Tensor> tiled_csl_pack_dense(const Tensor& weight_) {
  check_on_cpu(weight_, "weight");
  check_weight(weight_);
  const Tensor weight = as_contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const auto blocks =
      cpu::blocks_of(bits(weight), rows, cols, tiled_csl::kBlockRows, tiled_csl::kBlockCols);
  return tiled_csl_pack(blocks, rows, cols);
}

Tensor tiled_csl_validate(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  const auto result = tiled_csl::validate(tiled_csl_of(words, offsets, out, in));
  require(result.error);
  Tensor nonzeros = empty({}, ScalarType::Long);
  *nonzeros.mutable_data_ptr<int64_t>() = result.nonzeros;
  return nonzeros;
}

Tensor tiled_csl_unpack(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in,
                        ScalarType dtype) {
  check_weight_dtype(dtype);
  const auto packed = tiled_csl_of(words, offsets, out, in);
  Tensor weight = empty({out, in}, dtype);
  require(tiled_csl::unpack(packed, mutable_bits(weight)).error);
  return weight;
}

InterleavedBitmap tiled_csl_to_interleaved_bitmap(const Tensor& words, const Tensor& offsets_,
                                                  int64_t out, int64_t in) {
  const auto packed = tiled_csl_of(words, offsets_, out, in);
  std::vector<int64_t> tile_row_values(tiled_csl::tile_rows(out) + 1);
  require(tiled_csl::count_values(packed, tile_row_values.data()));
  Tensor offsets = empty({panels(out) + 1}, ScalarType::Long);
  Tensor values = empty({tile_row_values.back() + kValueSlack}, ScalarType::Short);
  Tensor masks = empty({panels(out), column_pairs(in)}, ScalarType::Int);
  const auto result =
      tiled_csl::to_interleaved_bitmap(packed, tile_row_values.data(), mutable_words(masks),
                                       mutable_bits(values), offsets.mutable_data_ptr<int64_t>());
  require(result.error);
  if (result.counted) return {values, masks, offsets};
  return interleaved_bitmap_pack(tiled_csl_unpack(words, offsets_, out, in, ScalarType::BFloat16));
}

// One implementation for any number of tokens: sparse_tokens has no effect.
Tensor tiled_csl_linear(const Tensor& x, const Tensor& words, const Tensor& offsets, int64_t out,
                        ScalarType weight_dtype, const std::optional<Tensor>& bias,
                        std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  check_weight_dtype(weight_dtype);
  const LinearInputs inputs(x, out, bias, words, "weight_packed");
  const auto packed = tiled_csl_of(words, offsets, out, inputs.in_features);
  Tensor y = inputs.new_y();
  require(tiled_csl::linear(packed, dtype_of(weight_dtype, "weight_dtype"),
                            inputs.x.const_data_ptr(), inputs.tokens, inputs.bias_data(),
                            y.mutable_data_ptr(), dtype_of(y.scalar_type(), "x")));
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def("tiled_csl_pack(Tensor weight) -> (Tensor weight_packed, Tensor tile_offsets)");
  m.def(
      "tiled_csl_unpack(Tensor weight_packed, Tensor tile_offsets, int out_features, "
      "int in_features, ScalarType dtype) -> Tensor");
  m.def(
      "tiled_csl_validate(Tensor weight_packed, Tensor tile_offsets, int out_features, "
      "int in_features) -> Tensor");
  m.def(
      "tiled_csl_linear(Tensor x, Tensor weight_packed, Tensor tile_offsets, int out_features, "
      "ScalarType weight_dtype, Tensor? bias=None, int? sparse_tokens=None) -> Tensor");
  m.def(
      "tiled_csl_to_interleaved_bitmap(Tensor weight_packed, Tensor tile_offsets, "
      "int out_features, int in_features) -> (Tensor values, Tensor masks, Tensor panel_offsets)");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("tiled_csl_pack", TORCH_BOX(&tiled_csl_pack_dense));
  m.impl("tiled_csl_unpack", TORCH_BOX(&tiled_csl_unpack));
  m.impl("tiled_csl_validate", TORCH_BOX(&tiled_csl_validate));
  m.impl("tiled_csl_linear", TORCH_BOX(&tiled_csl_linear));
  m.impl("tiled_csl_to_interleaved_bitmap", TORCH_BOX(&tiled_csl_to_interleaved_bitmap));
}

}  // namespace
}  // namespace flashsparse
