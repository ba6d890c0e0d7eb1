// SPDX-License-Identifier: Apache-2.0
// The offsets of a packed weight's parts, for any format. Nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

// Computes offsets[parts + 1] from lengths[parts], both in device memory and not overlapping, on
// `stream` of the current device. A sum of 4096 lengths must fit int32. total[1] is the sum of all:
// if it exceeds INT32_MAX, the offsets are invalid. `lengths` is 16-byte aligned.
cudaError_t sum_offsets(const int32_t* lengths, int64_t parts, int32_t* offsets, int64_t* total,
                        cudaStream_t stream);

}  // namespace flashsparse::cuda
