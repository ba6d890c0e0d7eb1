// SPDX-License-Identifier: Apache-2.0
// The linear kernel in all the shapes that it is compiled for.
#pragma once
#include "cuda/linear_mma.cuh"
#include "cuda/linear_plan.h"
#include "cuda/linear_wgmma.cuh"

namespace flashsparse::tiled_csl {

// Launch with any number of blocks up to the number of units, Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory. Shapes with wgmma are empty but on sm_90a.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_kernel(const LinearArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  if constexpr (!Shape::kWgmma) {
    LinearBlock<Shape, MmaMultiplier<Type, Shape>>(arguments, shared_address(shared)).run();
  } else {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    LinearBlock<Shape, WgmmaMultiplier<Type, Shape>>(arguments, shared_address(shared)).run();
#endif
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
