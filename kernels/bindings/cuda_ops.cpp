// SPDX-License-Identifier: Apache-2.0
// CUDA implementations of the ops: argument checks, allocation, one launch on the current stream.
// The schemas are in cpu_ops.cpp.
#include "bindings/cuda_checks.h"
#include "cuda/tiled_csl.h"

namespace flashsparse {
namespace {

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

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_csl_unpack", TORCH_BOX(&tiled_csl_unpack));
}

}  // namespace
}  // namespace flashsparse
