// SPDX-License-Identifier: Apache-2.0
// Multithreading of CPU kernels. Implemented on torch's thread pool in bindings/parallel.cpp, and
// on std::thread for programs without torch (sanitizer drivers).
#pragma once
#include <cstdint>
#include <functional>

namespace flashsparse {

// Calls body(i) once for every i in [0, count), in any order, on up to num_threads() threads.
// Threads take one index at a time, so that a thread that loses its core to another process delays
// one chunk, not its whole share.
void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body);

// Threads that parallel_chunks may use.
int num_threads();

}  // namespace flashsparse
