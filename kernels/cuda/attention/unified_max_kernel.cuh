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
  using Tile = NativeTile<Type, kHeadDim>;
  DecodeBlock<Tile, kHeadTiles>(arguments, shared_address(shared)).run();
}

// Over a cache of fp8 codes.
template <class Type, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    decode_fp8_kernel(const DecodeArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  using Tile = Fp8Tile<Type, kHeadDim>;
  DecodeBlock<Tile, kHeadTiles>(arguments, shared_address(shared)).run();
}

using DecodeKernel = void (*)(DecodeArguments);

// Kinds of kernels.
struct Native {
  template <class Type, int kHeadDim, int kHeadTiles>
  static constexpr DecodeKernel kKernel = decode_kernel<Type, kHeadDim, kHeadTiles>;
};
struct Fp8 {
  template <class Type, int kHeadDim, int kHeadTiles>
  static constexpr DecodeKernel kKernel = decode_fp8_kernel<Type, kHeadDim, kHeadTiles>;
};

// Null for other head dims.
template <class Kind>
DecodeKernel compiled_decode(const Problem& problem, bool bfloat16) {
  const int tiles = head_tiles_of_block(problem.head_dim, problem.group);
#define FS_DECODE_KERNEL(dim, head_tiles)                               \
  if (problem.head_dim == dim && tiles == head_tiles) {                 \
    return bfloat16 ? Kind::template kKernel<BFloat16, dim, head_tiles> \
                    : Kind::template kKernel<Float16, dim, head_tiles>; \
  }
  FS_DECODE_SHAPES(FS_DECODE_KERNEL)
#undef FS_DECODE_KERNEL
  return nullptr;
}

}  // namespace flashsparse::unified_max
