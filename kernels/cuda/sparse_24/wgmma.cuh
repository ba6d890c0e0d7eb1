// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by wgmma.sp, for more tokens than mma.sp is good for, on Hopper:
// one launch that reads the weight once for every 64 to 256 tokens, as it lies.
//
//   memory   units --four panels ahead--> registers of the warps: A, values and positions
//                                             |
//            x --tiles, to all of a cluster--> a ring of panels in shared memory: B
//                                             |
//            y <--from registers, by sectors-- accumulators, 64 rows x 64 to 256 tokens a warpgroup
//
// Why so: wgmma.sp does 4096 multiplications a clock, dense ones counted, and of 64 x tokens x 32
// it reads 64 tokens bytes of B, which shared memory needs as many clocks for as the tensor cores
// for the product. So shared memory binds, whatever the shape, and nothing else may pass through it
// that need not: the weight does not, and x is written there once for all warpgroups. For two of
// them and 256 tokens a panel takes 512 clocks of tensor cores, and of shared memory 512 for B, 256
// for the copies of x and 72 of the path that loads of the weight share: 840. From the L2 come 9 KB
// of the weight and 32 KB of x, 50 bytes a clock, where it gives 28 to 34: clusters of 2 need 30,
// of 4 20.
#pragma once
#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/registers.cuh"
#include "common/wgmma_sparse.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "cuda/sparse_24/wgmma_sums.cuh"
#include "cuda/sparse_24/wgmma_tiles.cuh"
#include "cuda/sparse_24/wgmma_weights.cuh"
#include "cuda/sparse_24/wgmma_x.cuh"

namespace flashsparse::sparse_24 {

// The same as an entry of kWgmmaShapes, for the kernel.
template <int kTokens_, int kGroups_>
struct WgmmaShape {
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kUnits = kGroups * 4;  // one for each warp that multiplies
  static constexpr uint32_t kPanelBytes = kTokens * kPanelCols * 2;
  // Registers of a thread: of the warpgroup that copies x, and of those that multiply. In all they
  // are those that the block is launched with, 168, 128 or 96 a thread.
  static constexpr int kCopying = kGroups == 2 ? 40 : 32;
  static constexpr int kMultiplying = kGroups == 2 ? 232 : kGroups == 3 ? 160 : 112;
};

template <class Type, class Shape>
class WgmmaMultiplier {
 public:
  __device__ __forceinline__ WgmmaMultiplier(const WgmmaArguments& a, const WgmmaX<Shape>& x)
      : a_(a), x_(x) {}

  // Of the warp of this number in its block.
  __device__ __forceinline__ void run(int warp) {
    constexpr uint32_t kBuffer = Shape::kTokens * kUnitRows * uint32_t{sizeof(float)};
    const int unit = WgmmaTiles::place_down(a_) * Shape::kUnits + warp;
    const int tile_units = a_.down * Shape::kUnits;
    WgmmaTiles tiles(a_, Shape::kTokens, tile_units * kUnitRows);
    WgmmaWeights weights(a_, tiles, unit, tile_units);
    const WgmmaSums<Type, Shape> store(a_, unit, tile_units, x_.end() + warp * kBuffer,
                                       x_.sums(warp));
    weights.load(unit_);
    FS_NO_UNROLL
    while (!tiles.ended()) {
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
      const int tile = tiles.tile();
      FS_NO_UNROLL
      do {
        step(weights);
      } while (!tiles.advance() && !tiles.ended());
      store.leave(sums_, tiles, tile);
    }
  }

 private:
  // Multiplies by a unit, and loads the next one. While one warpgroup waits for its products, those
  // of another are on their way.
  __device__ __forceinline__ void step(WgmmaWeights& weights) {
    WgmmaUnit next = {};
    weights.advance();
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      mbarrier_wait(x_.full(), x_.parity());
      const uint64_t x = wgmma_operand(x_.panel());
      wgmma_hold(sums_);
      wgmma_begin();
      wgmma_sparse<Type, Shape::kTokens, 0>(sums_, unit_.values[2 * panel], x,
                                            unit_.metadata[panel]);
      wgmma_sparse<Type, Shape::kTokens, 1>(sums_, unit_.values[2 * panel + 1],
                                            wgmma_moved(x, kStepCols * 2), unit_.metadata[panel]);
      wgmma_commit();
      wgmma_wait(sums_);
      release();
      // Not earlier: the loads of this step have come, or the first product would wait for these.
      if (panel == 0) weights.load(next);
    }
    unit_ = next;
  }

  // The warp has done with the panel: it says so to every block that copies to it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < a_.down) mbarrier_release_in(lane * a_.depth + WgmmaTiles::part(a_), x_.empty());
    x_.advance();
  }

  const WgmmaArguments& a_;
  WgmmaX<Shape> x_;
  WgmmaUnit unit_;  // of the step
  float sums_[Shape::kTokens / 2];
};

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty but on sm_90a.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const WgmmaArguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FS_DYNAMIC_SHARED(dynamic);
  const WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) ring.init(arguments);
  meet_cluster();
  if (warp < Shape::kUnits) {
    take_registers<Shape::kMultiplying>();
    WgmmaMultiplier<Type, Shape>(arguments, ring).run(warp);
  } else {
    release_registers<Shape::kCopying>();
    if (threadIdx.x == Shape::kUnits * 32) copy_x<Shape>(arguments, x, ring);
  }
  meet_cluster();
#endif
}

struct WgmmaCompiled {
  void (*float16)(WgmmaArguments, TensorMap);
  void (*bfloat16)(WgmmaArguments, TensorMap);
};

#define FS_COMPILED(tokens, groups)                   \
  {wgmma_kernel<Float16, WgmmaShape<tokens, groups>>, \
   wgmma_kernel<BFloat16, WgmmaShape<tokens, groups>>},
// By the index of kWgmmaShapes.
inline const WgmmaCompiled kCompiledWgmma[] = {FS_SPARSE_24_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED

}  // namespace flashsparse::sparse_24
