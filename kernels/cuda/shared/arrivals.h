// SPDX-License-Identifier: Apache-2.0
// Counters by which a block learns whether it is the last to arrive of those of its launch. They
// are zero before a launch, and the last block resets them, so no launch has to clear them.
//
// Launches that may run concurrently must not share counters. Launches in one stream are ordered,
// and share the stream's counters. A launch that is captured into a CUDA graph can be replayed on
// any stream, and gets its own counters.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

inline constexpr int64_t kMaxArrivals = 4096;  // counters of one launch: 128 x 4096 rows

// Sets `counters` to `count` <= kMaxArrivals zeros on the current device, for the next launch on
// `stream`. Allocates device memory when it first sees a stream, and 4 * count bytes, which are
// never freed, for each launch that is captured into a graph.
cudaError_t arrivals(cudaStream_t stream, int64_t count, uint32_t** counters);

}  // namespace flashsparse::cuda
