// SPDX-License-Identifier: Apache-2.0
// What the CUDA ops ask of packed tensors before they launch. Shapes, dtypes and places only:
// reading an offset would wait for the device. What the tensors hold is proven by
// tiled_csl_validate, once, at load.
#pragma once
#include <cuda_runtime_api.h>

#include "bindings/torch_stable.h"
#include "cuda/gpu.h"
#include "formats/tiled_csl.h"

namespace flashsparse {

inline void check_vector(const Tensor& tensor, const char* name, const Tensor& beside) {
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == beside.get_device_index(), name,
                  " must be on the CUDA device of weight_packed");
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Int, name, " must be int32");
  STD_TORCH_CHECK(tensor.dim() == 1, name, " must have 1 dimension, has ", tensor.dim());
  STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

inline void check_tiled_csl(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_vector(words, "weight_packed", words);
  check_vector(offsets, "tile_offsets", words);
  STD_TORCH_CHECK(out >= 1 && in >= 1, "a weight needs at least one row and one column, not [", out,
                  ", ", in, "]");
  const int64_t tiles = tiled_csl::tile_rows(out) * tiled_csl::tile_cols(in);
  STD_TORCH_CHECK(offsets.numel() == tiles + 1, "tile_offsets of a [", out, ", ", in,
                  "] weight has ", tiles + 1, " entries, not ", offsets.numel());
  STD_TORCH_CHECK(words.numel() <= INT32_MAX && tiles <= INT32_MAX, "a [", out, ", ", in,
                  "] weight of ", words.numel(), " packed words is beyond the int32 offsets of ",
                  "tiled_csl: split the layer or leave it dense");
  STD_TORCH_CHECK(
      reinterpret_cast<uintptr_t>(words.const_data_ptr()) % 16 == 0,
      "weight_packed must start on 16 bytes: pass a tensor of its own and not a slice, ",
      "e.g. weight_packed.clone()");
}

inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

inline Gpu gpu_of(const Tensor& tensor) {
  const int device = tensor.get_device_index();
  int multiprocessors = 0, shared_bytes = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  STD_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return {multiprocessors, shared_bytes};
}

}  // namespace flashsparse
