// SPDX-License-Identifier: Apache-2.0
// CUDA implementations of the ops: argument checks, allocation, one launch on the current stream.
// The schemas are in cpu_ops.cpp.
//
// Ops that wait for the device: tiled_csl_pack, which must learn how many words to allocate, and
// tiled_csl_validate.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "bindings/cuda_checks.h"
#include "cuda/tiled_csl.h"
#include "cuda/tiled_csl_verdict.h"

namespace flashsparse {
namespace {

// Waits for the device.
void read_back(const Tensor& tensor, void* to, size_t bytes) {
  const cudaStream_t stream = current_stream(tensor);
  STD_CUDA_CHECK(
      cudaMemcpyAsync(to, tensor.const_data_ptr(), bytes, cudaMemcpyDeviceToHost, stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(stream));
}

std::tuple<Tensor, Tensor> tiled_csl_pack(const Tensor& weight_) {
  STD_TORCH_CHECK(weight_.is_cuda(), "weight must be on a CUDA device here");
  STD_TORCH_CHECK(weight_.dim() == 2, "weight must be [out_features, in_features], has ",
                  weight_.dim(), " dimensions");
  STD_TORCH_CHECK(
      weight_.scalar_type() == ScalarType::Half || weight_.scalar_type() == ScalarType::BFloat16,
      "weight must be float16 or bfloat16");
  const int64_t rows = weight_.size(0), cols = weight_.size(1);
  STD_TORCH_CHECK(rows >= 1 && cols >= 1, "a weight needs at least one row and one column, not [",
                  rows, ", ", cols, "]");
  const torch::stable::accelerator::DeviceGuard guard(weight_.get_device_index());
  const Tensor weight = torch::stable::contiguous(weight_);
  const auto* bits = static_cast<const uint16_t*>(weight.const_data_ptr());
  const cudaStream_t stream = current_stream(weight);
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  Tensor offsets = torch::stable::new_empty(weight, {tiles + 1}, ScalarType::Int);
  Tensor counted = torch::stable::new_empty(weight, {1}, ScalarType::Long);
  STD_CUDA_CHECK(cuda::tiled_csl_count(bits, rows, cols, offsets.mutable_data_ptr<int32_t>(),
                                       counted.mutable_data_ptr<int64_t>(), stream));
  int64_t num_words = 0;
  read_back(counted, &num_words, sizeof num_words);
  STD_TORCH_CHECK(num_words <= INT32_MAX, "a [", rows, ", ", cols, "] weight with ", num_words,
                  " packed words overflows the int32 offsets of tiled_csl: split the ",
                  "layer or leave it dense");
  Tensor words = torch::stable::new_empty(weight, {num_words}, ScalarType::Int);
  if (num_words > 0) {
    STD_CUDA_CHECK(cuda::tiled_csl_pack(bits, rows, cols, offsets.const_data_ptr<int32_t>(),
                                        static_cast<uint32_t*>(words.mutable_data_ptr()), stream));
  }
  return {words, offsets};
}

Tensor tiled_csl_unpack(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in,
                        ScalarType dtype) {
  STD_TORCH_CHECK(dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
                  "packed weights are float16 or bfloat16");
  check_tiled_csl(words, offsets, out, in);
  const torch::stable::accelerator::DeviceGuard guard(words.get_device_index());
  Tensor weight = torch::stable::new_empty(words, {out, in}, dtype);
  STD_CUDA_CHECK(cuda::tiled_csl_unpack(static_cast<const uint32_t*>(words.const_data_ptr()),
                                        words.numel(), offsets.const_data_ptr<int32_t>(), out, in,
                                        static_cast<uint16_t*>(weight.mutable_data_ptr()),
                                        current_stream(words)));
  return weight;
}

const char* broken_rule(int32_t verdict) {
  switch (verdict) {
    case tiled_csl::kBadOffsets:
      return "its tile_offsets fall, are no multiples of 4, or do not span weight_packed";
    case tiled_csl::kPointsOutside:
      return "a word of weight_packed points outside its tile";
    default:
      return "weight_packed gives a second value to a location";
  }
}

Tensor tiled_csl_validate(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_tiled_csl(words, offsets, out, in);
  const torch::stable::accelerator::DeviceGuard guard(words.get_device_index());
  std::vector<int32_t> verdicts(offsets.numel() - 1);
  Tensor judged = torch::stable::new_empty(words, {offsets.numel() - 1}, ScalarType::Int);
  STD_CUDA_CHECK(cuda::tiled_csl_validate(static_cast<const uint32_t*>(words.const_data_ptr()),
                                          words.numel(), offsets.const_data_ptr<int32_t>(), out, in,
                                          judged.mutable_data_ptr<int32_t>(),
                                          current_stream(words)));
  read_back(judged, verdicts.data(), verdicts.size() * sizeof verdicts[0]);
  // Offsets first: where they are wrong, other tiles may have been judged by words not their own.
  auto bad = std::find(verdicts.begin(), verdicts.end(), tiled_csl::kBadOffsets);
  if (bad == verdicts.end()) {
    bad = std::find_if(verdicts.begin(), verdicts.end(), [](int32_t v) { return v < 0; });
  }
  if (bad != verdicts.end()) {
    STD_TORCH_CHECK(false, "tile ", bad - verdicts.begin(), ": ", broken_rule(*bad));
  }
  const int64_t nonzeros = std::accumulate(verdicts.begin(), verdicts.end(), int64_t{0});
  Tensor result = torch::stable::new_empty(words, {}, ScalarType::Long);
  STD_CUDA_CHECK(cudaMemcpyAsync(result.mutable_data_ptr(), &nonzeros, sizeof nonzeros,
                                 cudaMemcpyHostToDevice, current_stream(words)));
  return result;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_csl_pack", TORCH_BOX(&tiled_csl_pack));
  m.impl("tiled_csl_unpack", TORCH_BOX(&tiled_csl_unpack));
  m.impl("tiled_csl_validate", TORCH_BOX(&tiled_csl_validate));
}

}  // namespace
}  // namespace flashsparse
