// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA bindings.
#pragma once
#include <cuda_runtime_api.h>

#include <optional>
#include <vector>

#include "bindings/torch_stable.h"
#include "cuda/shared/gpu.h"

namespace flashsparse {

inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

inline Gpu ask_gpu(int device) {
  int multiprocessors = 0, shared_bytes = 0, major = 0, minor = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  STD_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  int kilohertz = 0, bits = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device));
  const double bus = kilohertz / 1e3 * 2 * bits / 8;  // DDR: two bits per clock and line
  return {multiprocessors, shared_bytes, major, minor, bus};
}

// The GPU that holds a tensor; queried when it is not that of the thread's last call.
inline Gpu gpu_of(const Tensor& tensor) {
  static thread_local int last = -1;
  static thread_local Gpu gpu;
  const int device = tensor.get_device_index();
  if (device != last) {
    gpu = ask_gpu(device);
    last = device;
  }
  return gpu;
}

// x [..., columns], contiguous, as kernels read it 16 bytes at a time: rows are zero-padded to a
// multiple of `multiple`.
inline Tensor aligned_rows(const Tensor& x, int64_t multiple) {
  const int64_t over = x.size(x.dim() - 1) % multiple;
  if (over != 0) return torch::stable::pad(x, {0, multiple - over});
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0) return torch::stable::clone(x);
  return x;
}

// Workspace for the partial sums of blocks that share rows. A launch that needs none allocates
// none, since an empty allocation takes the host as long as any other.
class Partials {
 public:
  Partials(const Tensor& like, int64_t floats) {
    if (floats > 0) room_ = allocate_like(like, {floats}, ScalarType::Float);
  }
  float* data() { return room_ ? room_->mutable_data_ptr<float>() : nullptr; }

 private:
  std::optional<Tensor> room_;
};

// A tensor's bytes on the host, as `Value`s. Synchronizes with the device.
template <typename Value>
std::vector<Value> read_back(const Tensor& tensor) {
  const size_t bytes = tensor.numel() * tensor.element_size();
  std::vector<Value> values(bytes / sizeof(Value));
  const cudaStream_t stream = current_stream(tensor);
  STD_CUDA_CHECK(cudaMemcpyAsync(values.data(), tensor.const_data_ptr(), bytes,
                                 cudaMemcpyDeviceToHost, stream));
  STD_CUDA_CHECK(cudaStreamSynchronize(stream));
  return values;
}

}  // namespace flashsparse
