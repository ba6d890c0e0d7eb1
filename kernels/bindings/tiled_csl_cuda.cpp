// SPDX-License-Identifier: Apache-2.0
// The ops of Tiled-CSL on CUDA: argument checks, allocation, launches on the current stream.
//
// Ops that synchronize: tiled_csl_pack, which needs the number of words to allocate, and
// tiled_csl_validate.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/cuda.h"
#include "bindings/linear_cuda.h"
#include "bindings/offsets_cuda.h"
#include "bindings/override.h"
#include "bindings/tiled_csl.h"
#include "bindings/unpacked_product.h"
#include "cuda/tiled_csl/tiled_csl.h"
#include "formats/tiled_csl_errors.h"

namespace flashsparse {
namespace {

using torch::stable::accelerator::DeviceGuard;

std::tuple<Tensor, Tensor> tiled_csl_pack(const Tensor& weight_) {
  check_on_cuda(weight_, "weight");
  check_weight(weight_);
  const DeviceGuard guard(weight_.get_device_index());
  const Tensor weight = as_contiguous(weight_);
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const cudaStream_t stream = current_stream(weight);
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  Tensor lengths = allocate_like(weight, {tiles}, ScalarType::Int);
  STD_CUDA_CHECK(
      cuda::tiled_csl_count(bits(weight), rows, cols, lengths.mutable_data_ptr<int32_t>(), stream));
  const auto [offsets, num_words] = offsets_of(lengths);
  check_word_count(num_words, rows, cols);
  Tensor words = allocate_like(weight, {num_words}, ScalarType::Int);
  if (num_words > 0) {
    STD_CUDA_CHECK(cuda::tiled_csl_pack(bits(weight), rows, cols, offsets.const_data_ptr<int32_t>(),
                                        mutable_words(words), stream));
  }
  return {words, offsets};
}

// Checks for every reader. Offsets and words are validated by tiled_csl_validate, once: reading an
// offset here would synchronize.
void check_readable(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_on_cuda(words, "weight_packed");
  check_tiled_csl(words, offsets, out, in);
  FS_CHECK(reinterpret_cast<uintptr_t>(words.const_data_ptr()) % 16 == 0,
           "weight_packed must start on 16 bytes: pass a tensor of its own and not a slice, ",
           "e.g. weight_packed.clone()");
}

// Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of
// kTileRows.
Tensor unpack_rows(const Tensor& words, const Tensor& offsets, int64_t first, int64_t rows,
                   int64_t in, ScalarType dtype) {
  Tensor weight = allocate_like(words, {rows, in}, dtype);
  const int64_t first_tile = first / tiled_csl::kTileRows * tiled_csl::tile_cols(in);
  STD_CUDA_CHECK(cuda::tiled_csl_unpack(words_of(words), words.numel(),
                                        offsets.const_data_ptr<int32_t>() + first_tile, rows, in,
                                        mutable_bits(weight), current_stream(words)));
  return weight;
}

Tensor tiled_csl_unpack(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in,
                        ScalarType dtype) {
  check_weight_dtype(dtype);
  check_readable(words, offsets, out, in);
  const DeviceGuard guard(words.get_device_index());
  return unpack_rows(words, offsets, 0, out, in, dtype);
}

// The CPU's error message for a weight whose tile `tile` is invalid.
std::string error_of(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in,
                     int64_t tile) {
  // Offsets first: if they are invalid, tiles may have been validated with the words of others.
  const auto at = read_back<int32_t>(offsets);
  std::string error = tiled_csl::offsets_error(at.data(), offsets.numel() - 1, words.numel());
  if (!error.empty()) return error;
  Tensor all = words;
  const auto own =
      read_back<uint32_t>(torch::stable::narrow(all, 0, at[tile], at[tile + 1] - at[tile]));
  return tiled_csl::tile_error(own.data(), at[tile], at[tile + 1], tile, out, in);
}

Tensor tiled_csl_validate(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_readable(words, offsets, out, in);
  const DeviceGuard guard(words.get_device_index());
  Tensor found = allocate_like(words, {offsets.numel() - 1}, ScalarType::Int);
  STD_CUDA_CHECK(
      cuda::tiled_csl_validate(words_of(words), words.numel(), offsets.const_data_ptr<int32_t>(),
                               out, in, found.mutable_data_ptr<int32_t>(), current_stream(words)));
  const auto verdicts = read_back<int32_t>(found);
  const auto bad = std::find_if(verdicts.begin(), verdicts.end(), [](int32_t v) { return v < 0; });
  if (bad != verdicts.end()) fail(error_of(words, offsets, out, in, bad - verdicts.begin()));
  const int64_t nonzeros = std::accumulate(verdicts.begin(), verdicts.end(), int64_t{0});
  Tensor result = allocate_like(words, {}, ScalarType::Long);
  STD_CUDA_CHECK(cudaMemcpyAsync(result.mutable_data_ptr(), &nonzeros, sizeof nonzeros,
                                 cudaMemcpyHostToDevice, current_stream(words)));
  return result;
}

void sparse_product(const LinearInputs& inputs, const Tensor& words, const Tensor& offsets,
                    const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const tiled_csl::Words weight{words_of(words), offsets.const_data_ptr<int32_t>()};
  const bool bfloat16 = inputs.x.scalar_type() == ScalarType::BFloat16;
  stream_k_product(
      inputs, y, linear::max_tokens(gpu),
      [&](int64_t tokens) {
        return launch_of(
            "tiled_csl", rows, cols, tokens, tiled_csl::LinearPlan{},
            [&] { return tiled_csl::plan_linear(rows, cols, tokens, words.numel(), gpu); },
            [&](const auto& plan) { return broken_rule(plan, rows, cols, tokens, gpu); });
      },
      [&](const linear::Arguments& arguments, const tiled_csl::LinearPlan& plan,
          cudaStream_t stream) {
        return cuda::tiled_csl_linear(weight, arguments, plan, bfloat16, stream);
      });
}

// The decode kernel for few tokens, unpacking and the library's dense product for more. The
// threshold is the caller's, or else a constant of the GPU; it is applied on the host, so that CUDA
// graphs can capture the launches.
Tensor tiled_csl_linear(const Tensor& x, const Tensor& words, const Tensor& offsets, int64_t rows,
                        ScalarType weight_dtype, const std::optional<Tensor>& bias,
                        std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  check_weight_dtype(weight_dtype);
  check_on_cuda(words, "weight_packed");
  const LinearInputs inputs(x, rows, bias, words, "weight_packed");
  const int64_t cols = inputs.in_features;
  check_readable(words, offsets, rows, cols);
  const DeviceGuard guard(words.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(words);
  const Kernel kernel =
      chosen_kernel("tiled_csl", {Kernel::kSparse}, x.scalar_type() == weight_dtype, [&] {
        return tiled_csl::choose_kernel(rows, cols, inputs.tokens, gpu, {sparse_tokens, {}});
      });
  if (kernel == Kernel::kSparse) {
    sparse_product(inputs, words, offsets, gpu, y);
  } else {
    unpacked_product(inputs, weight_dtype, tiled_csl::kTileRows, y,
                     [&](int64_t first, int64_t count) {
                       return unpack_rows(words, offsets, first, count, cols, weight_dtype);
                     });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_csl_pack", TORCH_BOX(&tiled_csl_pack));
  m.impl("tiled_csl_unpack", TORCH_BOX(&tiled_csl_unpack));
  m.impl("tiled_csl_validate", TORCH_BOX(&tiled_csl_validate));
  m.impl("tiled_csl_linear", TORCH_BOX(&tiled_csl_linear));
}

}  // namespace
}  // namespace flashsparse
