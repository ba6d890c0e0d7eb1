// SPDX-License-Identifier: Apache-2.0
// The stream-K kernel over any tile source, and what the host needs to launch it.
#pragma once
#include <type_traits>

#include "cuda/tiled_csl/linear_block.cuh"
#include "cuda/tiled_csl/multiply_mma.cuh"
#include "cuda/tiled_csl/multiply_wgmma.cuh"

namespace flashsparse::linear {

template <class Type, class Shape>
using Multiplier =
    std::conditional_t<Shape::kWgmma, WgmmaMultiplier<Type, Shape>, MmaMultiplier<Type, Shape>>;

template <class Source>
inline constexpr uint32_t kSharedBytes =
    Source::Shape::kSource + Source::kSharedBytes + Source::Shape::kFlagBytes;

// Launch with at most as many blocks as there are tiles, Shape::kThreads threads and
// kSharedBytes<Source> of dynamic shared memory. Shapes for Hopper are empty except on sm_90a,
// where the others are.
template <class Type, class Source>
__global__ void __launch_bounds__(Source::Shape::kThreads, Source::Shape::kBlocks)
    linear_kernel(const typename Source::Weight weight, const Arguments arguments) {
#if !defined(__CUDA_ARCH__)  // the emulator
  constexpr bool kRuns = true;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kRuns = Source::Shape::kHopper;
#else
  constexpr bool kRuns = !Source::Shape::kHopper;
#endif
  if constexpr (kRuns) {
    FS_DYNAMIC_SHARED(shared);
    Block<Source, Multiplier<Type, typename Source::Shape>>(weight, arguments,
                                                            shared_address(shared))
        .run();
  }
}

template <class Weight>
struct Compiled {
  void (*float16)(Weight, Arguments);
  void (*bfloat16)(Weight, Arguments);
  int threads;            // of a block
  uint32_t shared_bytes;  // of dynamic shared memory
};

template <class Source>
constexpr Compiled<typename Source::Weight> compiled() {
  return {linear_kernel<Float16, Source>, linear_kernel<BFloat16, Source>, Source::Shape::kThreads,
          kSharedBytes<Source>};
}

}  // namespace flashsparse::linear
