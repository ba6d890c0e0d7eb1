// SPDX-License-Identifier: Apache-2.0
// Grouped products of a mixture's experts in sparse_24 by wgmma.sp, on Hopper, for experts that see
// more than some 32 slots: one launch for any routing. All is as in the prefill kernel of one
// weight (wgmma.cuh), but for which tile comes next (experts/wgmma_tiles.cuh) and the epilogue
// (experts/wgmma_store.cuh). x lies in the order of slots, so TMA copies it as it copies one x.
#pragma once
#include "cuda/experts/wgmma_store.cuh"
#include "cuda/experts/wgmma_tiles.cuh"
#include "cuda/sparse_24/experts_wgmma_compiled.h"
#include "cuda/sparse_24/experts_wgmma_plan.h"
#include "cuda/sparse_24/wgmma.cuh"

namespace flashsparse::sparse_24 {

// Compile-time counterpart of an entry of kExpertsWgmmaShapes.
template <int tokens, int groups>
struct ExpertsWgmmaShape : WgmmaShape<tokens, groups> {
  using Arguments = experts::WgmmaArguments;
  using Tiles = experts::WgmmaTiles;

  template <class Type, class Operand>
  static __device__ __forceinline__ auto store(const Arguments& a,
                                               const mma_units::WgmmaX<ExpertsWgmmaShape>& x,
                                               int unit, int warp) {
    using Store =
        experts::WgmmaStore<Type, ExpertsWgmmaShape, Operand::Values::kLayout.has_row_scales()>;
    return Store(a, unit, warp, x.end());
  }
};

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() threads and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty except on sm_90a.
//
// The order was complete before the preceding kernel let this one begin: it is read without
// waiting, and so are weights.
template <class Type, class Operand, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    experts_wgmma_kernel(const experts::WgmmaArguments arguments,
                         const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Multiplier = WgmmaMultiplier<Type, Operand, Shape>;
  FS_DYNAMIC_SHARED(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == Shape::kWarps * 32) prefetch_tensor_map(x);
  // As in wgmma_kernel: shared with it, it changed the machine code of kernels that were timed.
  begin_cluster(arguments, ring, warp);
  if (warp < Shape::kWarps) {
    setmaxnreg_inc<Shape::kMultiplying>();
    typename Multiplier::Weights weights(arguments, ring, warp);
    weights.begin();
    Multiplier(arguments, ring).run(weights, warp);
  } else {
    setmaxnreg_dec<Shape::kCopying>();
    copy_x<Shape, Operand>(arguments, x, ring);
  }
  cluster_barrier_relaxed();
#endif
}

template <class Type, class Values, int tokens, int groups, int bits>
constexpr auto compiled_experts_kernel() -> decltype(ExpertsWgmmaCompiled::float16) {
  if constexpr (WgmmaShapeInfo{{tokens, groups}, 1, bits}.is_for(Values::kLayout)) {
    return experts_wgmma_kernel<Type, WidenedOperand<Type, Values>,
                                ExpertsWgmmaShape<tokens, groups>>;
  } else {
    return nullptr;
  }
}

template <class Values>
const ExpertsWgmmaCompiled* compiled_experts_wgmma() {
#define FS_COMPILED(tokens, groups, bits)                            \
  {compiled_experts_kernel<Float16, Values, tokens, groups, bits>(), \
   compiled_experts_kernel<BFloat16, Values, tokens, groups, bits>()},
  static const ExpertsWgmmaCompiled compiled[] = {FS_SPARSE_24_EXPERTS_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::sparse_24
