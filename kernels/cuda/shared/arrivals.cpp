// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/arrivals.h"

#include <map>
#include <mutex>
#include <utility>

namespace flashsparse::cuda {

namespace {

// Zeroed device memory that is handed out in pieces, and never freed.
class Pool {
 public:
  cudaError_t take(int64_t count, uint32_t** counters) {
    count = (count + kAlignment - 1) / kAlignment * kAlignment;
    if (left_ < count) {
      const cudaError_t error = grow();
      if (error != cudaSuccess) return error;
    }
    *counters = next_;
    next_ += count;
    left_ -= count;
    return cudaSuccess;
  }

 private:
  static constexpr int64_t kAlignment = 32;     // counters, a cache line
  static constexpr int64_t kChunk = 256 << 10;  // counters, 1 MB

  // May be called while a stream is being captured: relaxed mode permits cudaMalloc then, and a
  // stream of our own keeps the memset out of the capture.
  cudaError_t grow() {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) return error;
    void* memory = nullptr;
    cudaStream_t stream = nullptr;
    error = cudaMalloc(&memory, kChunk * sizeof(uint32_t));
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, kChunk * sizeof(uint32_t), stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (stream) cudaStreamDestroy(stream);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) return error;
    next_ = static_cast<uint32_t*>(memory);
    left_ = kChunk;
    return cudaSuccess;
  }

  uint32_t* next_ = nullptr;
  int64_t left_ = 0;
};

struct Known {
  std::mutex mutex;
  std::map<int, Pool> pools;                                    // by device
  std::map<std::pair<int, cudaStream_t>, uint32_t*> of_stream;  // kMaxArrivals counters each
};

}  // namespace

cudaError_t arrivals(cudaStream_t stream, int64_t count, uint32_t** counters) {
  static Known& known = *new Known;  // never destroyed: it must outlive its users at exit
  int device = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(known.mutex);
  if (status != cudaStreamCaptureStatusNone) return known.pools[device].take(count, counters);
  uint32_t*& found = known.of_stream[{device, stream}];
  if (!found) error = known.pools[device].take(kMaxArrivals, &found);
  *counters = found;
  return error;
}

}  // namespace flashsparse::cuda
