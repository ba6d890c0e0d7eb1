// SPDX-License-Identifier: Apache-2.0
// The offsets of a weight that is being packed on a GPU, and the size to allocate.
#pragma once
#include <tuple>

#include "bindings/cuda.h"
#include "cuda/shared/offsets.h"

namespace flashsparse {

// int32 [parts + 1] from int32 lengths [parts], and the total in 64 bits: if it exceeds INT32_MAX,
// the weight cannot be packed. Synchronizes with the device.
inline std::tuple<Tensor, int64_t> offsets_of(const Tensor& lengths) {
  Tensor offsets = allocate_like(lengths, {lengths.numel() + 1});
  Tensor summed = allocate_like(lengths, {1}, ScalarType::Long);
  STD_CUDA_CHECK(cuda::sum_offsets(lengths.const_data_ptr<int32_t>(), lengths.numel(),
                                   offsets.mutable_data_ptr<int32_t>(),
                                   summed.mutable_data_ptr<int64_t>(), current_stream(lengths)));
  return {offsets, read_back<int64_t>(summed)[0]};
}

}  // namespace flashsparse
