// SPDX-License-Identifier: Apache-2.0
// The offsets of a packed weight's parts, in any format. Nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

// offsets[parts + 1] from lengths[parts], both in device memory and apart from each other, on
// `stream` of the current device. A sum of 4096 lengths fits int32; total[1] is the sum of all:
// where it is beyond INT32_MAX, the offsets are not to be used. `lengths` starts on 16 bytes.
cudaError_t sum_offsets(const int32_t* lengths, int64_t parts, int32_t* offsets, int64_t* total,
                        cudaStream_t stream);

}  // namespace flashsparse::cuda
