// SPDX-License-Identifier: Apache-2.0
#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/shared/launch_early.h"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/sparse_24.h"

namespace flashsparse {
namespace {

template <class Codes>
auto kernel_of(bool bfloat16) {
  return bfloat16 ? mma_units::quantise_x_kernel<BFloat16, Codes>
                  : mma_units::quantise_x_kernel<Float16, Codes>;
}

}  // namespace

namespace cuda {

cudaError_t sparse_24_quantise_x(const uint16_t* x, int64_t x_stride, int64_t tokens,
                                 ValueType type, bool wide, bool bfloat16, bool early,
                                 uint16_t* codes, float* scales, cudaStream_t stream) {
  const auto kernel = type == ValueType::kInt8 ? kernel_of<sparse_24::Int8Codes>(bfloat16)
                      : wide                   ? kernel_of<sparse_24::WideFp8Codes>(bfloat16)
                                               : kernel_of<sparse_24::Fp8Codes>(bfloat16);
  return launch_early(kernel, static_cast<int>(tokens), mma_units::kQuantiseThreads, 0, early,
                      stream, x, static_cast<int>(x_stride), reinterpret_cast<uint4*>(codes),
                      scales, nullptr);
}

}  // namespace cuda
}  // namespace flashsparse
