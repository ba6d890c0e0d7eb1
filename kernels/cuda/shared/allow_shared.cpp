// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/allow_shared.h"

#include <map>
#include <mutex>
#include <utility>

namespace flashsparse::cuda {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, size_t> bytes;  // by kernel and device
};

}  // namespace

cudaError_t allow_shared(const void* kernel, size_t bytes) {
  static Known& known = *new Known;  // never destroyed: it must outlive its users at exit
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(known.mutex);
  size_t& allowed = known.bytes[{kernel, device}];
  if (bytes <= allowed) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error == cudaSuccess) allowed = bytes;
  return error;
}

}  // namespace flashsparse::cuda
