// SPDX-License-Identifier: Apache-2.0
// The one way in which CPU kernels use more than one thread. Implemented on torch's own thread pool
// in bindings/parallel.cpp, and on std::thread for programs without torch (sanitizer drivers).
#pragma once
#include <cstdint>
#include <functional>

namespace flashsparse {

// Calls body(i) once for every i in [0, count), in no fixed order, from up to num_threads()
// threads. Indices are handed out one by one as threads become free, so that a thread that lost its
// core to another process delays one chunk and not half of the work.
void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body);

// Threads that parallel_chunks may use.
int num_threads();

}  // namespace flashsparse
