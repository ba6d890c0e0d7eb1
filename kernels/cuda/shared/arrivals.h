// SPDX-License-Identifier: Apache-2.0
// Counters by which the blocks of one launch find out which of them is the last to arrive. They are
// zero before a launch, and the last block leaves them zero, so no launch has to clear them.
//
// Two launches that may run at the same time must not share counters. Launches of one stream follow
// one another and share the stream's counters. A launch recorded into a CUDA graph can be replayed
// on any stream, and gets counters of its own.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

inline constexpr int64_t kMaxArrivals = 4096;  // counters of one launch: 128 x 4096 rows

// Sets `counters` to `count` <= kMaxArrivals zeros on the current device, for the next launch on
// `stream`. Takes device memory the first time a stream is seen, and 4 * count bytes that are never
// given back for each launch recorded into a graph.
cudaError_t arrivals(cudaStream_t stream, int64_t count, uint32_t** counters);

}  // namespace flashsparse::cuda
