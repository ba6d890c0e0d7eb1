// SPDX-License-Identifier: Apache-2.0
// The linear kernel in all the shapes that it is compiled for.
#pragma once
#include <type_traits>

#include "cuda/linear_mma.cuh"
#include "cuda/linear_plan.h"
#include "cuda/linear_wgmma.cuh"

namespace flashsparse::tiled_csl {

template <class Type, class Shape>
using Multiplier =
    std::conditional_t<Shape::kWgmma, WgmmaMultiplier<Type, Shape>, MmaMultiplier<Type, Shape>>;

// Launch with any number of blocks up to the number of tiles, Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory. Shapes for Hopper are empty but on sm_90a.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_kernel(const LinearArguments arguments) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kRuns = !Shape::kHopper;
#else
  constexpr bool kRuns = true;
#endif
  if constexpr (kRuns) {
    FS_DYNAMIC_SHARED(shared);
    LinearBlock<Shape, Multiplier<Type, Shape>>(arguments, shared_address(shared)).run();
  }
}

struct CompiledLinear {
  void (*float16)(LinearArguments);
  void (*bfloat16)(LinearArguments);
  int threads;
  uint32_t shared_bytes;
};

#define FS_COMPILED(...)                                                                  \
  {linear_kernel<Float16, LinearShape<__VA_ARGS__>>,                                      \
   linear_kernel<BFloat16, LinearShape<__VA_ARGS__>>, LinearShape<__VA_ARGS__>::kThreads, \
   LinearShape<__VA_ARGS__>::kSharedBytes},
// By the index of kLinearShapes.
inline const CompiledLinear kCompiledLinear[] = {FS_LINEAR_SHAPES(FS_COMPILED)};
#undef FS_COMPILED

}  // namespace flashsparse::tiled_csl
