// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from exact_units by wgmma, the prefill kernel on Hopper: one launch that reads
// the weight once for every 32 to 256 tokens, in its stored layout.
//
//   memory   units --cp.async--> a ring of each warp --registers, decoded--> A
//            x --TMA tiles--> a ring of panels in shared memory: B
//            y <--32-byte sectors from registers-- accumulators of 64 rows x 32 to 256 tokens
//
// mma loads x from shared memory once for each warp, which with 32 tokens and more takes longer
// than the weight takes from memory; wgmma reads it once for four warps. While one warpgroup waits
// for its products, those of another run.
#pragma once
#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/registers.cuh"
#include "common/wgmma.cuh"
#include "cuda/exact_units/finish.cuh"
#include "cuda/exact_units/wgmma_compiled.h"
#include "cuda/exact_units/wgmma_operand.cuh"
#include "cuda/exact_units/wgmma_plan.h"
#include "cuda/exact_units/wgmma_weights.cuh"
#include "cuda/mma_units/wgmma_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"

namespace flashsparse::exact_units {

// Compile-time counterpart of an entry of kWgmmaShapes.
template <int kTokens_,  // of a tile
          int kGroups_,  // consumer warpgroups of a block
          Kind kKind_>
struct WgmmaShape {
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = wgmma_threads({kTokens, kGroups});
  static constexpr bool kMovesRegisters = wgmma_moves_registers(kTokens);
  static constexpr int kMultiplying = mma_units::wgmma_registers(kGroups);  // registers, then
  static constexpr int kWarps = kGroups * 4, kUnits = kWarps;  // consumers: one for each unit
  static constexpr int kStagePanels = mma_units::wgmma_stage_panels(kTokens);
  static constexpr uint32_t kPanelBytes = mma_units::wgmma_stage_bytes(kTokens);
  static constexpr int kJoined = mma_units::wgmma_joined(kTokens, 4);
};

template <class Shape>
class WgmmaMultiplier {
 public:
  __device__ __forceinline__ WgmmaMultiplier(const WgmmaArguments& arguments,
                                             const mma_units::WgmmaX<Shape>& x)
      : arguments_(arguments), x_(x) {}

  // `warp`: number of this warp in its block. The first copies of its weights have begun.
  __device__ __forceinline__ void run(WgmmaWeights<Shape>& weights, int warp) {
    constexpr uint32_t kBuffer = Shape::kTokens * kUnitRows * uint32_t{sizeof(float)};
    mma_units::WgmmaTiles tiles(arguments_);
    const int unit = mma_units::WgmmaTiles::place_down(arguments_) * Shape::kUnits + warp;
    const mma_units::WgmmaSums<BFloat16, Shape, TokenScales::kNone> store(
        arguments_, unit, x_.end() + warp * kBuffer, x_.sums(warp));
    const WgmmaFinish finish(arguments_);
    store.expect(tiles);
    griddepcontrol_wait();
    weights.take();
    operand_.make(a_[0], weights, 0);
    FS_NO_UNROLL
    while (!tiles.ended()) {
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
      wgmma_hold(sums_);
      const int tile = tiles.tile();
      bool more = true;  // whether the tile has more steps
      FS_NO_UNROLL
      while (more) {
        step(weights);
        more = !tiles.advance() && !tiles.ended();
      }
      wgmma_wait(sums_);
      release();
      store.leave(sums_, tiles, tile, finish);
      if (!tiles.ended()) store.expect(tiles);
    }
  }

 private:
  using Operand = WgmmaOperand<Shape::kKind>;

  // Multiplies by a unit, whose first panel is in a_. The next one is made while the products of a
  // panel run.
  __device__ __forceinline__ void step(WgmmaWeights<Shape>& weights) {
    const uint32_t slot = weights.slot();
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const int part = panel % Shape::kStagePanels;
      if (part == 0) mbarrier_wait(x_.full(), x_.parity());
      wgmma_begin();
      Operand::template multiply<Shape::kTokens>(sums_, a_[panel % 2],
                                                 wgmma_operand(x_.panel(part)));
      wgmma_commit();
      if constexpr (Operand::kHasExceptions) {  // no need to touch sums: the latest products run on
        wgmma_wait_but<1>();
        if (part == 0) release();
        prepare(panel + 1, weights);
      } else {
        prepare(panel + 1, weights);
        wgmma_wait(sums_);
        add_exceptions(slot, panel, x_.panel(part));
        wgmma_hold(sums_);
      }
      if (part + 1 < Shape::kStagePanels) continue;
      used_ = x_.empty();
      x_.advance();
      if (!Operand::kHasExceptions) release();
    }
    weights.take();
    operand_.make(a_[0], weights, 0);
  }

  // Makes A of a panel of the unit, all of which is in registers after the last one.
  __device__ __forceinline__ void prepare(int panel, WgmmaWeights<Shape>& weights) {
    if (panel < kPanels) {
      operand_.make(a_[panel % 2], weights, panel);
    } else {
      weights.release();
    }
  }

  // Releases the last stage of x, whose products have ended.
  __device__ __forceinline__ void release() {
    if (used_ != 0) x_.release(arguments_, used_);
    used_ = 0;
  }

  // Adds the products of those of the unit's exceptions whose columns are in the panel, of which x
  // is at shared address `at`.
  __device__ __forceinline__ void add_exceptions(uint32_t slot, int panel, uint32_t at) {
    for_each_exception(slot, panel, [&](uint32_t one) {
      if (slot_row(one) % 8 == threadIdx.x % 32 / 4) add(one, at);
    });
  }
  __device__ __forceinline__ void add(uint32_t slot, uint32_t at) {
    const float weight = to_float<BFloat16>(slot_bits(slot));
    const uint32_t column = slot_column(slot) % kPanelCols;
    const bool is_lower = slot_row(slot) >= 8;
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t token = threadIdx.x % 4 * 2 + i;
      const uint32_t from = at + token * 128 + (column / 8 ^ token) * 16 + column % 8 * 2;
      FS_UNROLL
      for (int n = 0; n < Shape::kTokens / 8; ++n) {
        const float x = to_float<BFloat16>(load_shared<uint16_t>(from + n * 8 * 128));
        float& upper = sums_[n * 4 + i];
        float& lower = sums_[n * 4 + 2 + i];
        if (is_lower) {
          lower = fmaf(weight, x, lower);
        } else {
          upper = fmaf(weight, x, upper);
        }
      }
    }
  }

  const WgmmaArguments& arguments_;
  mma_units::WgmmaX<Shape> x_;
  typename Operand::A a_[2];  // of this panel and the next
  Operand operand_;
  float sums_[Shape::kTokens / 2];
  uint32_t used_ = 0;  // barrier of the stage of x that is being multiplied last
};

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() threads and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty except on sm_90a.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const WgmmaArguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FS_DYNAMIC_SHARED(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared_address(dynamic));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const bool multiplies = warp < Shape::kUnits;
  if (threadIdx.x == Shape::kUnits * 32) prefetch_tensor_map(x);
  // A warp's ring needs no other warp: its copies begin before the block's barriers are there.
  WgmmaWeights<Shape> weights(arguments, ring, warp);
  if (multiplies) weights.begin();
  if (threadIdx.x % 32 == 0) ring.init(arguments, warp);
  cluster_barrier_relaxed();
  griddepcontrol_launch_dependents();
  if (multiplies) {
    if constexpr (Shape::kMovesRegisters) setmaxnreg_inc<Shape::kMultiplying>();
    WgmmaMultiplier<Shape>(arguments, ring).run(weights, warp);
  } else {
    if constexpr (Shape::kMovesRegisters) setmaxnreg_dec<24>();
    if (threadIdx.x == Shape::kUnits * 32) {
      griddepcontrol_wait();
      mma_units::copy_x<Shape, kPanels>(arguments, x, ring);
    }
  }
  cluster_barrier_relaxed();
#endif
}

template <int for_tokens, int tokens, int groups, Kind kind>
constexpr WgmmaCompiled wgmma_in() {
  if constexpr (for_tokens == tokens && wgmma_is_for(tokens, groups, kind))
    return wgmma_kernel<WgmmaShape<tokens, groups, kind>>;
  return nullptr;
}

template <int for_tokens, Kind kind>
const WgmmaCompiled* compiled_wgmma() {
#define FS_COMPILED(tokens, groups) wgmma_in<for_tokens, tokens, groups, kind>(),
  static const WgmmaCompiled compiled[] = {FS_EXACT_UNITS_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::exact_units
