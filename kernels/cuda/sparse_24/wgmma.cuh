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
// bytes a clock, where it sustains 28 to 34: clusters of 2 need 30, clusters of 4 need 20.
#pragma once
#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/registers.cuh"
#include "cuda/mma_units/wgmma_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/wgmma_compiled.h"
#include "cuda/sparse_24/wgmma_operands.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "cuda/sparse_24/wgmma_weights.cuh"

namespace flashsparse::sparse_24 {

// Compile-time counterpart of an entry of kWgmmaShapes.
template <int kTokens_,    // of a tile
          int kGroups_,    // of 64 rows of a block
          int kHigh_ = 1>  // of which a consumer warpgroup multiplies so many
struct WgmmaShape {
  static constexpr WgmmaShapeInfo kInfo{{kTokens_, kGroups_}, kHigh_, 0};
  static constexpr int kTokens = kTokens_, kGroups = kGroups_, kHigh = kHigh_;
  static constexpr int kThreads = wgmma_threads(kInfo);
  static constexpr int kWarps = kInfo.warpgroups() * 4;  // consumers, each of kHigh units
  static constexpr int kUnits = kWarps * kHigh;
  static constexpr uint32_t kPanelBytes = mma_units::wgmma_stage_bytes(kTokens);
  static constexpr int kStagePanels = kInfo.stage_panels();
  // Registers of a thread of the producer warpgroup, and of the consumers.
  static constexpr int kCopying = kInfo.warpgroups() == 2 ? 24 : 32;
  static constexpr int kMultiplying = mma_units::wgmma_registers(kInfo.warpgroups());
  static constexpr int kJoined = mma_units::wgmma_joined(kTokens, 4);
  using Arguments = mma_units::WgmmaArguments;
  using Tiles = mma_units::WgmmaTiles;

  // The epilogue of a row of units: `unit` of its tile, `place` of its block.
  template <class Type, class Operand, class X>
  static __device__ __forceinline__ auto store(const Arguments& a, const X& x, int unit,
                                               int place) {
    constexpr uint32_t kBuffer = kTokens * kUnitRows * uint32_t{sizeof(float)};
    using Sums =
        mma_units::WgmmaSums<Type, WgmmaShape,
                             token_scales_of(Operand::Values::kLayout.type, Operand::kXBytes),
                             typename Operand::Sum>;
    return Sums(a, unit, x.end() + place * kBuffer, x.sums(place));
  }
};

template <class Type, class Operand, class Shape>
class WgmmaMultiplier {
 public:
  using Weights = typename Operand::template Weights<Shape>;

  __device__ __forceinline__ WgmmaMultiplier(const typename Shape::Arguments& arguments,
                                             const mma_units::WgmmaX<Shape>& x)
      : arguments_(arguments), x_(x) {}

  // `warp`: number of this warp in its block. The first loads of its weights have begun.
  __device__ __forceinline__ void run(Weights& weights, int warp) {
    typename Shape::Tiles tiles(arguments_);
    const int block = mma_units::WgmmaTiles::place_down(arguments_) * Shape::kUnits;
    griddepcontrol_wait();
    make(0, weights.first());
    int index = 0;  // of the current unit in those that are loaded at once
    FS_NO_UNROLL
    while (!tiles.ended()) {
      FS_UNROLL
      for (auto& sums : sums_) {
        FS_UNROLL
        for (auto& sum : sums) sum = 0;
        wgmma_hold(sums);
      }
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
      FS_UNROLL
      for (int high = 0; high < kHigh; ++high) {
        const int place = warp * kHigh + high;
        Shape::template store<Type, Operand>(arguments_, x_, block + place, place)
            .leave(sums_[high], tiles, tile);
      }
    }
  }

 private:
  static constexpr int kHigh = Shape::kHigh;
  // Groups of products that run while A of the next is made. Of native values nothing is to make,
  // and x, released later, took up to 10% more time with 256 tokens.
  static constexpr int kRunning = Operand::Values::kLayout.type == ValueType::kNative ? 0 : 1;

  // Multiplies by a unit of each row, whose first panel is in a_. Where values are converted, the
  // products of one panel run while A of the next is made: until the last, each wait leaves the
  // latest running. Behind a wait for all of them ptxas would make A, to have it in the same
  // registers.
  __device__ __forceinline__ void step(Weights& weights, int index) {
    constexpr int kPanels = Operand::kPanels;
    weights.before_products(index);
    uint32_t used = 0;  // barrier of the previous stage of x
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const int part = panel % Shape::kStagePanels;
      const bool ends = part + 1 == Shape::kStagePanels;  // the stage
      if (part == 0) mbarrier_wait(x_.full(), x_.parity());
      Operand::template multiply<Shape::kTokens>(sums_, a_[panel % 2],
                                                 wgmma_operand(x_.panel(part)));
      wgmma_wait_but<kRunning>();
      if (kRunning > 0 && part == 0 && panel > 0) x_.release(arguments_, used);
      used = x_.empty();
      if (kRunning == 0 && ends) x_.release(arguments_, used);
      if (ends) x_.advance();
      if (panel + 1 < kPanels) make(panel + 1, weights.unit(index));
    }
    // A and metadata may lie in the registers of the units, which are about to hold others.
    FS_UNROLL
    for (auto& sums : sums_) wgmma_wait(sums);
    if (kRunning > 0) x_.release(arguments_, used);
    make(0, weights.advance(index));
  }

  __device__ __forceinline__ void make(int panel, const typename Weights::Units& units) {
    FS_UNROLL
    for (int high = 0; high < kHigh; ++high)
      operands_[high].make(a_[panel % 2][high], units[high], panel);
  }

  const typename Shape::Arguments& arguments_;
  mma_units::WgmmaX<Shape> x_;       // the next panel
  typename Operand::A a_[2][kHigh];  // of this panel and the next
  Operand operands_[kHigh];
  typename Operand::Sum sums_[kHigh][Shape::kTokens / 2];
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
  if (threadIdx.x != Shape::kWarps * 32) return;
  griddepcontrol_wait();
  mma_units::copy_x<Shape, Operand::kPanels, typename Shape::Tiles>(arguments, x, ring);
}

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() threads and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty except on sm_90a.
template <class Type, class Operand, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const typename Shape::Arguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Multiplier = WgmmaMultiplier<Type, Operand, Shape>;
  FS_DYNAMIC_SHARED(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const bool multiplies = warp < Shape::kWarps;
  if (threadIdx.x == Shape::kWarps * 32) prefetch_tensor_map(x);
  if constexpr (Multiplier::Weights::kBeginsEarly) {
    // Weights need no other warp: their loads begin before the block's barriers are there.
    typename Multiplier::Weights weights(arguments, ring, warp);
    if (multiplies) weights.begin();
    begin_cluster(arguments, ring, warp);
    if (multiplies) {
      setmaxnreg_inc<Shape::kMultiplying>();
      Multiplier(arguments, ring).run(weights, warp);
    } else {
      setmaxnreg_dec<Shape::kCopying>();
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

template <class Type, class Operand, int tokens, int groups, int high, int bits>
constexpr auto compiled_kernel() -> decltype(WgmmaCompiled::float16) {
  if constexpr (WgmmaShapeInfo{{tokens, groups}, high, bits}.is_for(Operand::Values::kLayout)) {
    return wgmma_kernel<Type, Operand, WgmmaShape<tokens, groups, high>>;
  } else {
    return nullptr;
  }
}

template <class Float16Operand, class BFloat16Operand>
const WgmmaCompiled* compiled_operands() {
#define FS_COMPILED(tokens, groups, high, bits)                            \
  {compiled_kernel<Float16, Float16Operand, tokens, groups, high, bits>(), \
   compiled_kernel<BFloat16, BFloat16Operand, tokens, groups, high, bits>()},
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
