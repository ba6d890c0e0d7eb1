// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by wgmma.sp, the prefill kernel on Hopper: one launch that reads
// the weight once for every 64 to 256 tokens, in its stored layout.
//
//   memory   units --some panels ahead--> registers of the warps: A, values and metadata
//                                             |
//            x --TMA tiles, multicast to the cluster--> a ring of panels in shared memory: B
//                                             |
//            y <--32-byte sectors from registers-- accumulators of 64 rows x 32 to 256 tokens
//
// Why so: wgmma.sp does 4096 multiplications a clock, counted as dense. For 64 x tokens x 32 of
// them it reads 64 * tokens bytes of B, which takes shared memory as many clocks as the tensor
// cores take for the product. So shared memory is the limiter of any shape, and nothing else should
// pass through it without need: the weight does not, and x is written there once for all
// warpgroups. With two of them and 256 tokens, a panel takes the tensor cores 512 clocks; it takes
// shared memory 512 for B, 256 for the copies of x, and 72 on the path that it shares with loads of
// the weight: 840. In this time the L2 would have to deliver 9 KB of the weight and 32 KB of x, 50
// bytes a clock, where it sustains 28 to 34: clusters of 2 need 30, clusters of 4 need 20. Up to 64
// tokens shared memory has time to spare, and 8-bit values may come through it, by a ring
// (wgmma_weight_ring.cuh).
#pragma once
#include <type_traits>

#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/registers.cuh"
#include "cuda/mma_units/wgmma_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/wgmma_compiled.h"
#include "cuda/sparse_24/wgmma_operands.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "cuda/sparse_24/wgmma_weight_ring.cuh"
#include "cuda/sparse_24/wgmma_weights.cuh"

namespace flashsparse::sparse_24 {

// Compile-time counterpart of an entry of kWgmmaShapes.
template <int kTokens_,            // of a tile
          int kGroups_,            // consumer warpgroups of a block
          bool kHasRing_ = false>  // whether the weight comes through shared memory
struct WgmmaShape {
  static constexpr mma_units::WgmmaShapeInfo kInfo{kTokens_, kGroups_};
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr bool kHasRing = kHasRing_;
  static constexpr int kThreads = wgmma_threads(kGroups, kHasRing);
  static constexpr int kUnits = kGroups * 4;  // one for each consumer warp
  static constexpr uint32_t kPanelBytes = mma_units::wgmma_stage_bytes(kTokens);
  // Registers of a thread of the producer warpgroup, and of the consumers.
  static constexpr int kCopying = kGroups == 2 ? 24 : 32;
  static constexpr int kMultiplying = mma_units::wgmma_registers(kGroups);
  static constexpr int kJoined = mma_units::wgmma_joined(kTokens, 4);
  using Arguments = mma_units::WgmmaArguments;
  using Tiles = mma_units::WgmmaTiles;

  // The epilogue of a warp, whose row of units in a tile is `unit`.
  template <class Type, class Operand>
  static __device__ __forceinline__ auto store(const Arguments& a,
                                               const mma_units::WgmmaX<WgmmaShape>& x, int unit,
                                               int warp) {
    constexpr uint32_t kBuffer = kTokens * kUnitRows * uint32_t{sizeof(float)};
    using Sums =
        mma_units::WgmmaSums<Type, WgmmaShape,
                             token_scales_of(Operand::Values::kLayout.type, Operand::kXBytes),
                             typename Operand::Sum>;
    return Sums(a, unit, x.end() + warp * kBuffer, x.sums(warp));
  }
};

template <class Type, class Operand, class Shape>
class WgmmaMultiplier {
 public:
  using Weights = std::conditional_t<Shape::kHasRing, WgmmaWeightRing<Operand, Shape>,
                                     WgmmaWeights<Operand, Shape>>;

  __device__ __forceinline__ WgmmaMultiplier(const typename Shape::Arguments& arguments,
                                             const mma_units::WgmmaX<Shape>& x)
      : arguments_(arguments), x_(x) {}

  // `warp`: number of this warp in its block. The first loads of its weights have begun.
  __device__ __forceinline__ void run(Weights& weights, int warp) {
    typename Shape::Tiles tiles(arguments_);
    const int unit = mma_units::WgmmaTiles::place_down(arguments_) * Shape::kUnits + warp;
    const auto store = Shape::template store<Type, Operand>(arguments_, x_, unit, warp);
    if constexpr (Shape::kHasRing) store.expect(tiles);
    griddepcontrol_wait();
    operand_.make(a_[0], weights.first(), 0);
    int index = 0;  // of the current unit in those that are loaded at once
    FS_NO_UNROLL
    while (!tiles.ended()) {
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
      const auto tile = tiles.tile();
      bool more = true;  // whether the tile has more steps
      FS_NO_UNROLL
      while (more) {
        FS_UNROLL
        for (int i = 0; i < Weights::kAtOnce; ++i) {
          if (!more || index != i) continue;
          step(weights, i);
          index = (i + 1) % Weights::kAtOnce;
          more = !tiles.advance() && !tiles.ended();
        }
      }
      store.leave(sums_, tiles, tile);
      if constexpr (Shape::kHasRing) {
        if (!tiles.ended()) store.expect(tiles);
      }
    }
  }

 private:
  // Multiplies by a unit, whose first panel is in a_. While one warpgroup waits for its products,
  // those of another run.
  __device__ __forceinline__ void step(Weights& weights, int index) {
    constexpr int kPanels = Operand::kPanels;
    weights.before_products(index);
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      mbarrier_wait(x_.full(), x_.parity());
      wgmma_hold(sums_);
      wgmma_begin();
      Operand::template multiply<Shape::kTokens>(sums_, a_[panel % 2], wgmma_operand(x_.panel()));
      wgmma_commit();
      // Prepares the next panel while this one is being multiplied.
      if (panel + 1 < kPanels) operand_.make(a_[(panel + 1) % 2], weights.unit(index), panel + 1);
      wgmma_wait(sums_);
      x_.release(arguments_);
      if (panel == 0) weights.after_first_product();
    }
    operand_.make(a_[0], weights.advance(index), 0);
  }

  const typename Shape::Arguments& arguments_;
  mma_units::WgmmaX<Shape> x_;
  typename Operand::A a_[2];  // of this panel and the next
  Operand operand_;
  typename Operand::Sum sums_[Shape::kTokens / 2];
};

// Initializes the barriers of x, for all blocks of the cluster to see.
template <class Shape>
__device__ __forceinline__ void begin_cluster(const mma_units::WgmmaArguments& arguments,
                                              const mma_units::WgmmaX<Shape>& ring, int warp) {
  if (threadIdx.x % 32 == 0) ring.init(arguments, warp);
  cluster_barrier_relaxed();
  griddepcontrol_launch_dependents();
}

// The producer's part: one of its threads copies x.
template <class Shape, class Operand>
__device__ __forceinline__ void copy_x(const typename Shape::Arguments& arguments,
                                       const TensorMap& x, const mma_units::WgmmaX<Shape>& ring) {
  if (threadIdx.x != Shape::kUnits * 32) return;
  griddepcontrol_wait();
  mma_units::copy_x<Shape, Operand::kPanels, typename Shape::Tiles>(arguments, x, ring);
}

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() threads and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty except on sm_90a.
template <class Type, class Operand, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const mma_units::WgmmaArguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Multiplier = WgmmaMultiplier<Type, Operand, Shape>;
  FS_DYNAMIC_SHARED(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const bool multiplies = warp < Shape::kUnits;
  if (threadIdx.x == Shape::kUnits * 32) prefetch_tensor_map(x);
  if constexpr (Shape::kHasRing) {
    // A warp's ring needs no other warp: its copies begin before the block's barriers are there.
    typename Multiplier::Weights weights(arguments, ring, warp);
    if (multiplies) weights.begin();
    begin_cluster(arguments, ring, warp);
    if (multiplies) {
      Multiplier(arguments, ring).run(weights, warp);
    } else {
      copy_x<Shape, Operand>(arguments, x, ring);
    }
  } else {
    begin_cluster(arguments, ring, warp);
    if (multiplies) {
      setmaxnreg_inc<Shape::kMultiplying>();
      typename Multiplier::Weights weights(arguments, ring, warp);
      weights.begin();
      Multiplier(arguments, ring).run(weights, warp);
    } else {
      setmaxnreg_dec<Shape::kCopying>();
      copy_x<Shape, Operand>(arguments, x, ring);
    }
  }
  cluster_barrier_relaxed();
#endif
}

template <class Type, class Operand, int tokens, int groups, int bits, bool has_ring>
constexpr auto compiled_kernel() -> decltype(WgmmaCompiled::float16) {
  if constexpr (WgmmaShapeInfo{{tokens, groups}, bits, has_ring}.is_for(Operand::Values::kLayout)) {
    return wgmma_kernel<Type, Operand, WgmmaShape<tokens, groups, has_ring>>;
  } else {
    return nullptr;
  }
}

template <class Float16Operand, class BFloat16Operand>
const WgmmaCompiled* compiled_operands() {
#define FS_COMPILED(tokens, groups, bits, has_ring)                            \
  {compiled_kernel<Float16, Float16Operand, tokens, groups, bits, has_ring>(), \
   compiled_kernel<BFloat16, BFloat16Operand, tokens, groups, bits, has_ring>()},
  static const WgmmaCompiled compiled[] = {FS_SPARSE_24_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

template <class Values>
const WgmmaCompiled* compiled_wgmma() {
  return compiled_operands<WidenedOperand<Float16, Values>, WidenedOperand<BFloat16, Values>>();
}

template <class Codes>
const WgmmaCompiled* compiled_codes_wgmma() {
  return compiled_operands<CodesOperand<Codes>, CodesOperand<Codes>>();
}

}  // namespace flashsparse::sparse_24
