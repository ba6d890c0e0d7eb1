// SPDX-License-Identifier: Apache-2.0
// The compiled shapes of the decode attention kernel.
#pragma once
#include "cuda/attention/unified_max_decode.cuh"

namespace flashsparse::unified_max {

// One block of kMaxWarps on a multiprocessor: for more, ptxas would limit registers, and spill.
template <class Type, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    decode_kernel(const DecodeArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  DecodeBlock<Type, kHeadDim, kHeadTiles, false>(arguments, shared_address(shared)).run();
}

// With DecodeArguments::sinks.
template <class Type, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    decode_sinks_kernel(const DecodeArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  DecodeBlock<Type, kHeadDim, kHeadTiles, true>(arguments, shared_address(shared)).run();
}

template <class Type, int kHeadDim, int kHeadTiles>
constexpr auto decode_kernel_of(bool sinks) -> void (*)(DecodeArguments) {
  return sinks ? decode_sinks_kernel<Type, kHeadDim, kHeadTiles>
               : decode_kernel<Type, kHeadDim, kHeadTiles>;
}

// Null for other head dims.
inline auto compiled_decode(const Problem& problem, bool bfloat16, bool sinks)
    -> void (*)(DecodeArguments) {
  const int tiles = head_tiles_of_block(problem.head_dim, problem.group);
#define FS_DECODE_KERNEL(dim, head_tiles)                                \
  if (problem.head_dim == dim && tiles == head_tiles) {                  \
    return bfloat16 ? decode_kernel_of<BFloat16, dim, head_tiles>(sinks) \
                    : decode_kernel_of<Float16, dim, head_tiles>(sinks); \
  }
  FS_DECODE_SHAPES(FS_DECODE_KERNEL)
#undef FS_DECODE_KERNEL
  return nullptr;
}

}  // namespace flashsparse::unified_max
