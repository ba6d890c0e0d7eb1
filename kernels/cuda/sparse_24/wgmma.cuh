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
#include "cuda/mma_units/wgmma_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/wgmma_compiled.h"
#include "cuda/sparse_24/wgmma_operands.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "cuda/sparse_24/wgmma_weights.cuh"

namespace flashsparse::sparse_24 {

// The same as an entry of kWgmmaShapes, for the kernel.
template <int kTokens_, int kGroups_>
struct WgmmaShape {
  static constexpr mma_units::WgmmaShapeInfo kInfo{kTokens_, kGroups_};
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kUnits = kGroups * 4;  // one for each warp that multiplies
  static constexpr uint32_t kPanelBytes = mma_units::wgmma_stage_bytes(kTokens);
  // Registers of a thread: of the warpgroup that copies x, and of those that multiply.
  static constexpr int kCopying = kGroups == 2 ? 24 : 32;
  static constexpr int kMultiplying = mma_units::wgmma_registers(kGroups);
  static constexpr int kJoined = mma_units::wgmma_joined(kTokens, 4);
};

template <class Type, class Operand, class Shape>
class WgmmaMultiplier {
 public:
  using Weights = WgmmaWeights<typename Operand::Values>;

  __device__ __forceinline__ WgmmaMultiplier(const mma_units::WgmmaArguments& arguments,
                                             const mma_units::WgmmaX<Shape>& x)
      : arguments_(arguments), x_(x) {}

  // Of the warp of this number in its block.
  __device__ __forceinline__ void run(int warp) {
    constexpr uint32_t kBuffer = Shape::kTokens * kUnitRows * uint32_t{sizeof(float)};
    const int unit = mma_units::WgmmaTiles::place_down(arguments_) * Shape::kUnits + warp;
    const int tile_units = arguments_.down * Shape::kUnits;
    mma_units::WgmmaTiles tiles(arguments_, Shape::kTokens, tile_units * kUnitRows);
    Weights weights(arguments_, tiles, unit, tile_units);
    const mma_units::WgmmaSums<Type, Shape, Operand::kXBytes == 1, typename Operand::Sum> store(
        arguments_, unit, tile_units, x_.end() + warp * kBuffer, x_.sums(warp));
    load(weights, units_);
    wait_for_last_kernel();
    operand_.make(a_[0], units_[0], 0);
    int turn = 0;  // of the units that were loaded at once
    FS_NO_UNROLL
    while (!tiles.ended()) {
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
      const int tile = tiles.tile();
      bool more = true;  // steps of the tile
      FS_NO_UNROLL
      while (more) {
        // Registers have no index: each of the units has code of its own.
        FS_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (!more || turn != i) continue;
          step(weights, i);
          turn = (i + 1) % kAtOnce;
          more = !tiles.advance() && !tiles.ended();
        }
      }
      store.leave(sums_, tiles, tile);
    }
  }

 private:
  static constexpr int kAtOnce =
      wgmma_units_at_once(Shape::kInfo, Operand::Values::kLayout, Operand::kXBytes);
  using Unit = typename Weights::Unit;

  static __device__ __forceinline__ void load(Weights& weights, Unit (&units)[kAtOnce]) {
    FS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) weights.load(units[i]);
  }

  // Multiplies by a unit, whose first panel is in a_; the first of those loaded at once loads as
  // many again. While one warpgroup waits for its products, those of another are on their way.
  __device__ __forceinline__ void step(Weights& weights, int number) {
    constexpr int kPanels = Operand::kPanels;
    if (number == 0) load(weights, next_);
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      mbarrier_wait(x_.full(), x_.parity());
      wgmma_hold(sums_);
      wgmma_begin();
      Operand::template multiply<Shape::kTokens>(sums_, a_[panel % 2], wgmma_operand(x_.panel()));
      wgmma_commit();
      // Beside that of this panel, which is being multiplied.
      if (panel + 1 < kPanels) operand_.make(a_[(panel + 1) % 2], units_[number], panel + 1);
      wgmma_wait(sums_);
      release();
    }
    if (number + 1 == kAtOnce) {
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) units_[i] = next_[i];
    }
    operand_.make(a_[0], units_[(number + 1) % kAtOnce], 0);
  }

  // The warp has done with the panel: it says so to every block that copies to it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < arguments_.down) {
      mbarrier_release_in(lane * arguments_.depth + mma_units::WgmmaTiles::part(arguments_),
                          x_.empty());
    }
    x_.advance();
  }

  const mma_units::WgmmaArguments& arguments_;
  mma_units::WgmmaX<Shape> x_;
  Unit units_[kAtOnce], next_[kAtOnce];  // of this step and some after it; those that follow
  typename Operand::A a_[2];             // of this panel and the next
  Operand operand_;
  typename Operand::Sum sums_[Shape::kTokens / 2];
};

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty but on sm_90a.
template <class Type, class Operand, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const mma_units::WgmmaArguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FS_DYNAMIC_SHARED(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) ring.init(arguments);
  meet_cluster();
  allow_next_kernel();
  if (warp < Shape::kUnits) {
    take_registers<Shape::kMultiplying>();
    WgmmaMultiplier<Type, Operand, Shape>(arguments, ring).run(warp);
  } else {
    release_registers<Shape::kCopying>();
    if (threadIdx.x == Shape::kUnits * 32) {
      wait_for_last_kernel();
      mma_units::copy_x<Shape, Operand::kPanels>(arguments, x, ring);
    }
  }
  meet_cluster();
#endif
}

template <class Type, class Operand, int tokens, int groups, int bits>
constexpr auto compiled_kernel() -> decltype(WgmmaCompiled::float16) {
  if constexpr (WgmmaShapeInfo{{tokens, groups}, bits}.is_for(Operand::Values::kLayout)) {
    return wgmma_kernel<Type, Operand, WgmmaShape<tokens, groups>>;
  } else {
    return nullptr;
  }
}

template <class Float16Operand, class BFloat16Operand>
const WgmmaCompiled* compiled_operands() {
#define FS_COMPILED(tokens, groups, bits)                            \
  {compiled_kernel<Float16, Float16Operand, tokens, groups, bits>(), \
   compiled_kernel<BFloat16, BFloat16Operand, tokens, groups, bits>()},
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
