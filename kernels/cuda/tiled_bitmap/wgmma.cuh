// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from tiled_bitmap by wgmma, the prefill kernel on Hopper: load as sparse,
// compute as dense, without a dense tile of the weight anywhere.
//
//   memory   units --bulk copies--> a ring for each warp --> decoded to registers: A
//                                                              |
//            x --TMA tiles, multicast to the cluster--> a ring of panels: B
//                                                              |
//            y <--32-byte sectors from registers-- accumulators of 64 rows x 64 to 256 tokens
//
// Why so: a lane's weights in a unit of tiled_bitmap are exactly those of its fragment of A. So a
// warp decodes the next panel of 64 columns into registers while the current one is being
// multiplied, and shared memory, which is a limiter along with the tensor cores, need not store and
// load a dense tile. A panel of 128 rows x 256 tokens takes the tensor cores 1024 clocks; it takes
// shared memory 512 for B, 256 for the copies of x and, for a weight with half zeros, 79 for its
// copies and 202 for what its lanes read: 1049.
//
// Int8 values take half of the memory and of the copies. They are widened where they are decoded,
// or, where x is quantized to int8, too, multiplied as they are: then a panel has 128 columns.
#pragma once
#include <type_traits>

#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/registers.cuh"
#include "common/wgmma_registers.cuh"
#include "cuda/mma_units/wgmma_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/tiled_bitmap/kept_codes.cuh"
#include "cuda/tiled_bitmap/lane_items.cuh"
#include "cuda/tiled_bitmap/wgmma_compiled.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"
#include "cuda/tiled_bitmap/wgmma_units.cuh"

namespace flashsparse::tiled_bitmap {

// Compile-time counterpart of an entry of kWgmmaShapes.
template <int kTokens_,  // of a tile
          int kGroups_>  // consumer warpgroups of a block
struct WgmmaShape {
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kWarps = kGroups * 4, kUnits = kWarps;  // consumers: one for each unit
  static constexpr int kStagePanels = 1;
  static constexpr uint32_t kPanelBytes = mma_units::wgmma_stage_bytes(kTokens);
  // Registers of a thread of the producer warpgroup, and of the consumers.
  static constexpr int kCopying = kGroups == 2 ? 24 : 32;
  static constexpr int kMultiplying = mma_units::wgmma_registers(kGroups);
  // Whether the four products of a panel are one wgmma group: short products end before the
  // decoding that would be placed between them.
  static constexpr bool kWholePanels = kTokens < 128;
  // Groups of 8 tokens whose partial sums a warp loads at once; its own accumulators are in the
  // workspace by then.
  static constexpr int kJoined = mma_units::wgmma_joined(kTokens, 8);
};

// Called by all threads after the only tile of a cluster that splits K has been multiplied. The
// blocks then exchange partial sums in the shared memory that x and units had in each of them,
// which has been read by then. Nothing was written that would have to be ordered.
__device__ __forceinline__ void end_products(const WgmmaArguments& arguments) {
  if (arguments.depth > 1) cluster_barrier_relaxed();
}

template <class Type, class Shape, Operands operands>
class WgmmaMultiplier {
 public:
  // `shared`: shared memory of the block; `warp`: the number of this warp in it.
  __device__ __forceinline__ WgmmaMultiplier(const WgmmaArguments& arguments,
                                             const mma_units::WgmmaX<Shape>& x, uint32_t shared,
                                             int warp)
      : arguments_(arguments),
        unit_(mma_units::WgmmaTiles::place_down(arguments) * Shape::kUnits + warp),
        tile_units_(arguments.down * Shape::kUnits),
        tiles_(arguments),
        x_(x),
        first_panel_(wgmma_operand(x.panel())),
        units_(arguments, tiles_, unit_, tile_units_,
               x.end() + warp * arguments.ring_lines * kLineBytes, barriers(shared, warp)),
        sums_buffer_(shared + uint32_t{mma_units::kWgmmaBarriers} + warp * kSumsBytes),
        warp_(warp),
        rank_(keep(static_cast<int>(threadIdx.x % 32) * arguments.depth +
                   mma_units::WgmmaTiles::part(arguments))) {}

  // Barriers of the units of a warp.
  static __device__ __forceinline__ uint32_t barriers(uint32_t shared, int warp) {
    constexpr int kOthers = 2 * mma_units::kMostXStages + Shape::kUnits;
    static_assert(
        (kOthers + Shape::kUnits * kUnitsAhead) * kMbarrierBytes <= mma_units::kWgmmaBarriers,
        "a barrier has its place");
    return shared + (kOthers + warp * kUnitsAhead) * kMbarrierBytes;
  }

  __device__ __forceinline__ void run() {
    const Sums store(arguments_, unit_, sums_buffer_, x_.sums(warp_));
    units_.fill();
    units_.fill();
    if (kHasScales) store.expect(tiles_);
    open();
    decode<0, 0>();
    decode<0, 1>();
    decode<0, 2>();
    decode<0, 3>();
    units_.fill();
    FS_NO_UNROLL
    while (!tiles_.ended()) {
      FS_UNROLL
      for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
      wgmma_hold(sums_);
      const int tile = tiles_.tile();
      bool first = true, more = true;  // of the tile: at its first step, more steps to come
      FS_NO_UNROLL
      while (more) {
        step(first);
        first = false;
        more = !tiles_.advance() && !tiles_.ended();
      }
      wgmma_wait(sums_);
      release(used_);
      end_products(arguments_);
      store.leave(sums_, tiles_, tile);
    }
  }

 private:
  static constexpr bool kHasScales = operands != Operands::kNative;
  static constexpr bool kByCodes = operands == Operands::kRounded;
  using Items = std::conditional_t<kHasScales, KeptCodes<Type, kByCodes>, LaneItems>;
  using Sum = std::conditional_t<kByCodes, int32_t, float>;
  using Sums = mma_units::WgmmaSums<
      Type, Shape,
      kByCodes     ? TokenScales::kAlways
      : kHasScales ? TokenScales::kOptional
                   : TokenScales::kNone,
      Sum, operands == Operands::kCodes ? static_cast<int>(1 / kWidenedByte<Type>) : 1>;
  static constexpr int kPanels = wgmma_panels(operands);
  static constexpr int kWords = kMaskWords / kPanels;  // of the masks, for a panel
  static constexpr uint32_t kSumsBytes = Shape::kTokens * kUnitRows * uint32_t{sizeof(float)};

  // Multiplies by a unit, whose first panel is in a_.
  __device__ __forceinline__ void step(bool first) {
    multiply<0>(first);
    if constexpr (kPanels > 2) {
      multiply<1>(false);
      multiply<2>(false);
    }
    units_.release();
    units_.fill();
    multiply<kPanels - 1>(false);
  }

  // Decodes a panel's A of the `part`-th of its four products.
  template <int panel, int part>
  __device__ __forceinline__ void decode() {
    constexpr int kParts = 4 / kWords;  // of a word
    constexpr int kWord = panel % kPanels * kWords + part / kParts;
    const uint32_t mask = kWord == 0   ? masks_.x
                          : kWord == 1 ? masks_.y
                          : kWord == 2 ? masks_.z
                                       : masks_.w;
    items_.template expand<part % kParts>(mask, a_[panel % 2][part]);
  }

  // Multiplies by a panel and decodes the next one. Waits for the products whose A is overwritten,
  // and releases the previous panel of x when the products that read it have ended.
  template <int panel>
  __device__ __forceinline__ void multiply(bool first) {
    constexpr int kNext = panel + 1;
    uint32_t (&a)[4][4] = a_[panel % 2];
    mbarrier_wait(x_.full(), x_.parity());
    const uint64_t x = first_panel_ + x_.stage() * (Shape::kPanelBytes / 16);
    const uint32_t used = used_;
    used_ = x_.empty();
    x_.advance();
    if constexpr (Shape::kWholePanels) {
      multiply_columns<0, 4>(a, x);
      wgmma_wait_but<1>();
      if (!first) release(used);
      begin_panel<kNext>();
      decode<kNext, 0>();
      decode<kNext, 1>();
      decode<kNext, 2>();
      decode<kNext, 3>();
    } else {
      multiply_columns<0, 1>(a, x);
      wgmma_wait_but<4>();
      begin_panel<kNext>();
      decode<kNext, 0>();
      multiply_columns<1, 2>(a, x);
      wgmma_wait_but<2>();
      if (!first) release(used);
      decode<kNext, 1>();
      multiply_columns<2, 3>(a, x);
      decode<kNext, 2>();
      multiply_columns<3, 4>(a, x);
      decode<kNext, 3>();
    }
  }

  // Issues one wgmma group: products of 32 bytes of columns each, from `begin` to `end` of the
  // panel's four.
  template <int begin, int end>
  __device__ __forceinline__ void multiply_columns(const uint32_t (&a)[4][4], uint64_t x) {
    wgmma_begin();
    FS_UNROLL
    for (int i = begin; i < end; ++i) {
      if constexpr (kByCodes) {
        wgmma_registers_int8<Shape::kTokens>(sums_, a[i], wgmma_moved(x, i * 32));
      } else {
        wgmma_registers<Type, Shape::kTokens>(sums_, a[i], wgmma_moved(x, i * 32));
      }
    }
    wgmma_commit();
  }

  // Before panel `panel` is decoded: moves to run 1, or to the next unit.
  template <int panel>
  __device__ __forceinline__ void begin_panel() {
    if constexpr (panel * kWords == kRunMasks) items_.begin(values_, starts_ >> 16);
    if constexpr (panel == kPanels) open();
  }

  // Moves to the next unit. After the last one, decodes it again, which is never used.
  __device__ __forceinline__ void open() {
    if (units_.any()) {
      const uint32_t unit = units_.wait(), lane = threadIdx.x % 32;
      masks_ = load_shared<uint4>(unit + lane * 16);
      starts_ = load_shared<uint32_t>(unit + kMaskLines * kLineBytes + lane * 4);
      values_ = unit + kHeadLines * kLineBytes;
    }
    items_.begin(values_, starts_ & 0xffff);
  }

  // The warp is done with the panel of x that has this barrier: arrives in every block that copies
  // to it.
  __device__ __forceinline__ void release(uint32_t used) {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < arguments_.down) mbarrier_release_in(rank_, used);
  }

  const WgmmaArguments& arguments_;
  const int unit_, tile_units_;
  mma_units::WgmmaTiles tiles_;
  mma_units::WgmmaX<Shape> x_;
  const uint64_t first_panel_;  // descriptor of the ring's first stage
  uint32_t used_ = 0;           // empty barrier of the latest panel
  WgmmaUnits units_;
  const uint32_t sums_buffer_;
  const int warp_;
  const int rank_;    // of the block that this lane signals, in the cluster
  uint4 masks_ = {};  // of the unit, this lane's
  uint32_t starts_ = 0, values_ = 0;
  Items items_;
  uint32_t a_[2][4][4];  // of this panel and the next
  Sum sums_[Shape::kTokens / 2];
};

// Launch with plan.blocks() blocks in clusters of plan.cluster(), plan.threads() threads and
// plan.shared_bytes(); `x` maps tiles of plan.copied_tokens() rows. Empty except on sm_90a.
template <class Type, class Shape, Operands operands>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wgmma_kernel(const WgmmaArguments arguments, const __grid_constant__ TensorMap x) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FS_DYNAMIC_SHARED(dynamic);
  using Multiplier = WgmmaMultiplier<Type, Shape, operands>;
  const uint32_t shared = shared_address(dynamic);
  const mma_units::WgmmaX<Shape> ring(arguments, shared);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x % 32 == 0) {
    if (warp < Shape::kUnits) WgmmaUnits::init(Multiplier::barriers(shared, warp));
    ring.init(arguments, warp);
  }
  cluster_barrier_relaxed();
  if (warp < Shape::kUnits) {
    setmaxnreg_inc<Shape::kMultiplying>();
    Multiplier(arguments, ring, shared, warp).run();
  } else {
    setmaxnreg_dec<Shape::kCopying>();
    if (threadIdx.x == Shape::kUnits * 32) {
      mma_units::copy_x<Shape, wgmma_panels(operands)>(arguments, x, ring);
    }
    end_products(arguments);
  }
  cluster_barrier_relaxed();
#endif
}

template <class Type, Operands operands>
const WgmmaKernel* compiled_wgmma() {
#define FS_COMPILED(tokens, groups) wgmma_kernel<Type, WgmmaShape<tokens, groups>, operands>,
  static const WgmmaKernel compiled[] = {FS_TILED_BITMAP_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::tiled_bitmap
