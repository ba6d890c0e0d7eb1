// SPDX-License-Identifier: Apache-2.0
// Schemas of every op, and CPU implementations of those on packed weights: argument checks,
// allocation, one kernel call. Those of dense layers are in cpu_dense.cpp, of attention in
// cpu_attention.cpp. What each op means is said in flashsparse_plugin/ops/schema.py.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/packed_checks.h"
#include "bindings/torch_stable.h"
#include "common/huge_pages.h"
#include "cpu/interleaved_bitmap.h"
#include "cpu/kernels.h"
#include "cpu/tiled_csl.h"
#include "formats/interleaved_bitmap.h"
#include "formats/tiled_csl.h"
#include "pack/tiled_csl.h"

STABLE_TORCH_LIBRARY(flashsparse, m) {
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
      "tiled_csl_linear_planned(Tensor x, Tensor weight_packed, Tensor tile_offsets, "
      "int out_features, ScalarType weight_dtype, Tensor? bias, int shape, int blocks) -> Tensor");
  m.def(
      "tiled_csl_to_interleaved_bitmap(Tensor weight_packed, Tensor tile_offsets, "
      "int out_features, int in_features) -> (Tensor values, Tensor masks, Tensor panel_offsets)");
  m.def(
      "interleaved_bitmap_pack(Tensor weight) -> "
      "(Tensor values, Tensor masks, Tensor panel_offsets)");
  m.def(
      "interleaved_bitmap_unpack(Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, int in_features, ScalarType dtype) -> Tensor");
  m.def(
      "interleaved_bitmap_linear(Tensor x, Tensor values, Tensor masks, Tensor panel_offsets, "
      "int out_features, ScalarType weight_dtype, Tensor? bias=None) -> Tensor");
  m.def("flat_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("flat_gemm_planned(Tensor x, Tensor weight, Tensor? bias, int shape, int split) -> Tensor");
  m.def("gemv(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("gemv_planned(Tensor x, Tensor weight, Tensor? bias, int shape) -> Tensor");
  m.def(
      "dense_linear(Tensor x, Tensor weight, Tensor? bias, int gemv_tokens, int flat_tokens) -> "
      "Tensor");
  m.def(
      "unified_max_decode(Tensor query, Tensor key, Tensor value, Tensor? lengths=None, "
      "Tensor? mask=None, *, float scale, Tensor? phi=None, float? low=None, float? high=None, "
      "float softcap=0.0, int window=0) -> (Tensor out, Tensor recomputed)");
  m.def(
      "unified_max_paged_decode(Tensor query, Tensor key_cache, Tensor value_cache, "
      "Tensor block_table, Tensor lengths, *, float scale, Tensor? phi=None, float? low=None, "
      "float? high=None, float softcap=0.0, int window=0) -> (Tensor out, Tensor recomputed)");
  m.def(
      "unified_max_paged_decode.out(Tensor query, Tensor key_cache, Tensor value_cache, "
      "Tensor block_table, Tensor lengths, *, float scale, Tensor? phi=None, float? low=None, "
      "float? high=None, float softcap=0.0, int window=0, Tensor(a!) out) -> Tensor recomputed");
  m.def("cpu_capability() -> str");
}

namespace flashsparse {
namespace {

// ---- checks -----------------------------------------------------------------------------------

void check_tensor(const Tensor& tensor, const char* name, ScalarType dtype, int64_t dim) {
  STD_TORCH_CHECK(tensor.is_cpu(), name, " must be on the CPU here");
  STD_TORCH_CHECK(tensor.scalar_type() == dtype, name, " has the wrong dtype");
  STD_TORCH_CHECK(tensor.dim() == dim, name, " must have ", dim, " dimensions, has ", tensor.dim());
  STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

void check_shape(int64_t out_features, int64_t in_features) {
  STD_TORCH_CHECK(out_features >= 1 && in_features >= 1 && out_features <= INT32_MAX &&
                      in_features <= INT32_MAX,
                  "a weight has between 1 and 2^31 - 1 rows and as many columns, not [",
                  out_features, ", ", in_features, "]");
}

void check_weight(const Tensor& weight) {
  STD_TORCH_CHECK(weight.is_cpu(), "weight must be on the CPU here");
  STD_TORCH_CHECK(weight.dim() == 2, "weight must be [out_features, in_features], has ",
                  weight.dim(), " dimensions");
  check_shape(weight.size(0), weight.size(1));
  STD_TORCH_CHECK(
      weight.scalar_type() == ScalarType::Half || weight.scalar_type() == ScalarType::BFloat16,
      "weight must be float16 or bfloat16");
}

void check_weight_dtype(ScalarType dtype) {
  STD_TORCH_CHECK(dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
                  "packed weights are float16 or bfloat16");
}

void check_tiled_csl(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_tensor(words, "weight_packed", ScalarType::Int, 1);
  check_tensor(offsets, "tile_offsets", ScalarType::Int, 1);
  check_shape(out, in);
  const int64_t tiles = tiled_csl::tile_rows(out) * tiled_csl::tile_cols(in);
  STD_TORCH_CHECK(offsets.numel() == tiles + 1, "tile_offsets of a [", out, ", ", in,
                  "] weight has ", tiles + 1, " entries, not ", offsets.numel());
}

Dtype dtype_of(ScalarType dtype, const char* name) {
  switch (dtype) {
    case ScalarType::Float:
      return Dtype::kFloat32;
    case ScalarType::Half:
      return Dtype::kFloat16;
    case ScalarType::BFloat16:
      return Dtype::kBFloat16;
    default:
      STD_TORCH_CHECK(false, name, " must be float32, float16 or bfloat16");
      return Dtype::kFloat32;
  }
}

Tensor empty(std::vector<int64_t> shape, ScalarType dtype) {
  Tensor tensor = torch::stable::empty(shape, dtype);
  const size_t bytes = static_cast<size_t>(tensor.numel() * tensor.element_size());
  prefer_huge_pages(tensor.mutable_data_ptr(), bytes);
  return tensor;
}

const uint16_t* bits(const Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); }
uint16_t* mutable_bits(Tensor& t) { return static_cast<uint16_t*>(t.mutable_data_ptr()); }
const uint32_t* words_of(const Tensor& t) {
  return static_cast<const uint32_t*>(t.const_data_ptr());
}
uint32_t* mutable_words(Tensor& t) { return static_cast<uint32_t*>(t.mutable_data_ptr()); }

// ---- tiled_csl --------------------------------------------------------------------------------

std::tuple<Tensor, Tensor> tiled_csl_pack(const Tensor& weight_) {
  check_weight(weight_);
  const Tensor weight = torch::stable::contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  std::vector<int64_t> counted(tiles + 1);
  tiled_csl::count(bits(weight), rows, cols, counted.data());
  STD_TORCH_CHECK(counted.back() <= INT32_MAX, "a [", rows, ", ", cols, "] weight with ",
                  counted.back(),
                  " packed words overflows the int32 offsets of tiled_csl: split the ",
                  "layer or leave it dense");
  Tensor offsets = empty({tiles + 1}, ScalarType::Int);
  int32_t* offset = offsets.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i <= tiles; ++i) offset[i] = static_cast<int32_t>(counted[i]);
  Tensor words = empty({counted.back()}, ScalarType::Int);
  tiled_csl::pack(bits(weight), rows, cols, offset, mutable_words(words));
  return {words, offsets};
}

tiled_csl::Packed tiled_csl_of(const Tensor& words, const Tensor& offsets, int64_t out,
                               int64_t in) {
  check_tiled_csl(words, offsets, out, in);
  return {words_of(words), words.numel(), offsets.const_data_ptr<int32_t>(), out, in};
}

void require(const std::string& error) { STD_TORCH_CHECK(error.empty(), error); }

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

// ---- interleaved_bitmap -----------------------------------------------------------------------

using Bitmap = std::tuple<Tensor, Tensor, Tensor>;  // values, masks, panel_offsets

Bitmap interleaved_bitmap_pack(const Tensor& weight_) {
  check_weight(weight_);
  const Tensor weight = torch::stable::contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const int64_t panels = interleaved_bitmap::panels(rows);
  Tensor offsets = empty({panels + 1}, ScalarType::Long);
  int64_t* offset = offsets.mutable_data_ptr<int64_t>();
  interleaved_bitmap::count(bits(weight), rows, cols, offset);
  Tensor values = empty({offset[panels] + interleaved_bitmap::kValueSlack}, ScalarType::Short);
  Tensor masks = empty({panels, interleaved_bitmap::column_pairs(cols)}, ScalarType::Int);
  interleaved_bitmap::pack(bits(weight), rows, cols, offset, mutable_words(masks),
                           mutable_bits(values));
  return {values, masks, offsets};
}

Bitmap tiled_csl_to_interleaved_bitmap(const Tensor& words, const Tensor& offsets_, int64_t out,
                                       int64_t in) {
  const auto packed = tiled_csl_of(words, offsets_, out, in);
  std::vector<int64_t> tile_row_values(tiled_csl::tile_rows(out) + 1);
  require(tiled_csl::count_values(packed, tile_row_values.data()));
  const int64_t panels = interleaved_bitmap::panels(out);
  Tensor offsets = empty({panels + 1}, ScalarType::Long);
  Tensor values =
      empty({tile_row_values.back() + interleaved_bitmap::kValueSlack}, ScalarType::Short);
  Tensor masks = empty({panels, interleaved_bitmap::column_pairs(in)}, ScalarType::Int);
  const auto result =
      tiled_csl::to_interleaved_bitmap(packed, tile_row_values.data(), mutable_words(masks),
                                       mutable_bits(values), offsets.mutable_data_ptr<int64_t>());
  require(result.error);
  if (result.counted) return {values, masks, offsets};
  return interleaved_bitmap_pack(tiled_csl_unpack(words, offsets_, out, in, ScalarType::BFloat16));
}

interleaved_bitmap::Weight bitmap_of(const Tensor& values, const Tensor& masks,
                                     const Tensor& offsets, int64_t out, int64_t in,
                                     ScalarType dtype) {
  check_weight_dtype(dtype);
  check_shape(out, in);
  check_tensor(values, "values", ScalarType::Short, 1);
  check_tensor(masks, "masks", ScalarType::Int, 2);
  check_tensor(offsets, "panel_offsets", ScalarType::Long, 1);
  const int64_t panels = interleaved_bitmap::panels(out);
  STD_TORCH_CHECK(masks.size(0) == panels && masks.size(1) == interleaved_bitmap::column_pairs(in),
                  "masks of a [", out, ", ", in, "] weight must be [", panels, ", ",
                  interleaved_bitmap::column_pairs(in), "], not [", masks.size(0), ", ",
                  masks.size(1), "]");
  STD_TORCH_CHECK(offsets.numel() == panels + 1, "panel_offsets must have ", panels + 1,
                  " entries");
  const int64_t* offset = offsets.const_data_ptr<int64_t>();
  // Longer is fine: vLLM's layers are padded to share compiled graphs.
  STD_TORCH_CHECK(offset[panels] + interleaved_bitmap::kValueSlack <= values.numel(), "values has ",
                  values.numel(), " entries, panel_offsets promises ",
                  offset[panels] + interleaved_bitmap::kValueSlack);
  return {out, in, words_of(masks), bits(values), offset, dtype_of(dtype, "weight_dtype")};
}

Tensor interleaved_bitmap_unpack(const Tensor& values, const Tensor& masks, const Tensor& offsets,
                                 int64_t out, int64_t in, ScalarType dtype) {
  const auto packed = bitmap_of(values, masks, offsets, out, in, dtype);
  Tensor weight = empty({out, in}, dtype);
  interleaved_bitmap::unpack(packed, mutable_bits(weight));
  return weight;
}

// x, its shape and the result's, for either linear op.
struct LinearArguments {
  Tensor x;
  std::optional<Tensor> bias;
  int64_t tokens = 1, in_features;
  Dtype dtype;
  Tensor y;

  LinearArguments(const Tensor& x_, int64_t out, const std::optional<Tensor>& bias_)
      : x(checked(x_)),
        in_features(x.size(x.dim() - 1)),
        dtype(dtype_of(x.scalar_type(), "x")),
        y(result(out)) {
    if (!bias_) return;
    STD_TORCH_CHECK(bias_->dim() == 1 && bias_->size(0) == out, "bias must be [", out, "]");
    bias = torch::stable::contiguous(torch::stable::to(*bias_, x.scalar_type()));
  }
  const void* bias_data() const { return bias ? bias->const_data_ptr() : nullptr; }

 private:
  static Tensor checked(const Tensor& x_) {
    STD_TORCH_CHECK(x_.is_cpu(), "x must be on the CPU, as the weight is");
    STD_TORCH_CHECK(x_.dim() >= 1, "x must be [..., in_features]");
    return torch::stable::contiguous(x_);
  }
  Tensor result(int64_t out) {
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) {
      shape.push_back(x.size(i));
      tokens *= x.size(i);
    }
    shape.push_back(out);
    return empty(shape, x.scalar_type());
  }
};

Tensor interleaved_bitmap_linear(const Tensor& x, const Tensor& values, const Tensor& masks,
                                 const Tensor& offsets, int64_t out, ScalarType weight_dtype,
                                 const std::optional<Tensor>& bias) {
  check_shape(out, 1);
  LinearArguments args(x, out, bias);
  const auto weight = bitmap_of(values, masks, offsets, out, args.in_features, weight_dtype);
  interleaved_bitmap::linear(weight, args.x.const_data_ptr(), args.tokens, args.bias_data(),
                             args.y.mutable_data_ptr(), args.dtype);
  return args.y;
}

// One implementation for any number of tokens: sparse_tokens leaves it nothing to choose.
Tensor tiled_csl_linear(const Tensor& x, const Tensor& words, const Tensor& offsets, int64_t out,
                        ScalarType weight_dtype, const std::optional<Tensor>& bias,
                        std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  check_weight_dtype(weight_dtype);
  check_shape(out, 1);
  LinearArguments args(x, out, bias);
  const auto packed = tiled_csl_of(words, offsets, out, args.in_features);
  require(tiled_csl::linear(packed, dtype_of(weight_dtype, "weight_dtype"), args.x.const_data_ptr(),
                            args.tokens, args.bias_data(), args.y.mutable_data_ptr(), args.dtype));
  return args.y;
}

std::string cpu_capability() { return cpu::kernels().name; }

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("tiled_csl_pack", TORCH_BOX(&tiled_csl_pack));
  m.impl("tiled_csl_unpack", TORCH_BOX(&tiled_csl_unpack));
  m.impl("tiled_csl_validate", TORCH_BOX(&tiled_csl_validate));
  m.impl("tiled_csl_linear", TORCH_BOX(&tiled_csl_linear));
  m.impl("tiled_csl_to_interleaved_bitmap", TORCH_BOX(&tiled_csl_to_interleaved_bitmap));
  m.impl("interleaved_bitmap_pack", TORCH_BOX(&interleaved_bitmap_pack));
  m.impl("interleaved_bitmap_unpack", TORCH_BOX(&interleaved_bitmap_unpack));
  m.impl("interleaved_bitmap_linear", TORCH_BOX(&interleaved_bitmap_linear));
}

// Takes no tensor, so no device could choose between implementations.
STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&cpu_capability));
}

}  // namespace
}  // namespace flashsparse
