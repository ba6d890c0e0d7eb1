// SPDX-License-Identifier: Apache-2.0
// The epilogue of a warp of the wgmma kernels, at the end of a tile or of the cluster's part of it.
// The blocks of a cluster along K exchange shares of their accumulators through shared memory.
// Clusters that share a tile use the workspace (partial_sums.cuh).
#pragma once
#include "common/cluster.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/partial_sums.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_y.cuh"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

// What is done to accumulators before they are stored: nothing. A format's own has
// of_tile(row_unit, token), of a warp's row of units and a tile's first token, which returns what
// is called with the accumulators of the tokens from 8 n on.
struct Unchanged {
  struct Tile {
    __device__ __forceinline__ float4 operator()(int, const float4& sums) const { return sums; }
  };
  __device__ __forceinline__ Tile of_tile(int, int) const { return {}; }
};

template <class Type, class Shape, TokenScales token_scales, class Sum = float, int restored = 1>
class WgmmaSums {
 public:
  using Y = WgmmaY<Type, token_scales, restored>;
  static constexpr int kTokenBlocks = Shape::kTokens / 8;

  // `unit`: the warp's row of units in a tile. `buffer` and `arrived`:
  // where partial sums of the blocks along K arrive, and their barrier.
  __device__ __forceinline__ WgmmaSums(const WgmmaArguments& a, int unit, uint32_t buffer,
                                       uint32_t arrived)
      : a_(a),
        unit_(unit),
        buffer_(buffer + threadIdx.x % 32 * uint32_t{sizeof(float4)}),
        arrived_(arrived) {}

  // The current tile's scales and bias, which are needed at its end, begin their way from memory.
  __device__ __forceinline__ void expect(const WgmmaTiles& tiles) const {
    const int unit = tiles.row_tile(tiles.tile()) * tile_units() + unit_;
    const int row = unit * kUnitRows + threadIdx.x % kUnitRows;
    if (row >= a_.rows) return;
    if (a_.scales) prefetch(a_.scales + row);
    if (a_.bias) prefetch(a_.bias + row);
  }

  // `tile` is one of the cluster's range.
  template <class Finish = Unchanged>
  __device__ __forceinline__ void leave(Sum (&sums)[Shape::kTokens / 2], const WgmmaTiles& tiles,
                                        int tile, const Finish& finish = {}) const {
    const int unit = tiles.row_tile(tile) * tile_units() + unit_;
    if (unit >= a_.unit_rows) return;
    const int token = tiles.token_tile(tile) * Shape::kTokens;
    const Y y(a_, unit * kUnitRows, token);
    if (a_.depth > 1) {
      give(sums, y.tokens());
      take(y, finish.of_tile(unit, token));
      return;
    }
    const int first = tiles.first_cluster(tile), last = tiles.last_cluster(tile);
    if (first < last && !add_clusters(sums, tiles, tile, first, last, y.tokens())) return;
    const auto own = finish.of_tile(unit, token);
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) y.store(n, own(n, numbers<Sum>(moved(sums + 4 * n))));
  }

 private:
  // Of rows, in a tile. Multiplied out where it is needed, as registers are scarce.
  __device__ __forceinline__ int tile_units() const { return a_.down * Shape::kUnits; }

  // True for the last of the clusters that share the tile, which then has the sums of all, for the
  // `tokens` that are left.
  __device__ __forceinline__ bool add_clusters(Sum (&sums)[Shape::kTokens / 2],
                                               const WgmmaTiles& tiles, int tile, int first,
                                               int last, int tokens) const {
    return reduce<kTokenBlocks, Shape::kJoined>(
        sums, [&] { return a_.arrivals + (int64_t{tile} * tile_units() + unit_); },
        a_.by_cluster(blockIdx.x), first, last,
        [&](int cluster) { return partials(cluster, tiles.is_first(cluster, tile)); },
        [&](int block) { return block * 8 < tokens; });
  }

  // A cluster has slots for the first tile of its range, and for the last.
  __device__ __forceinline__ float4* partials(int cluster, bool is_first) const {
    const int64_t slot = (int64_t{cluster} * 2 + !is_first) * tile_units() + unit_;
    return reinterpret_cast<float4*>(a_.partials) + slot * (kTokenBlocks * 32) + threadIdx.x % 32;
  }

  // Sends each block along K its share of the tokens, 8 at a time.
  __device__ __forceinline__ void give(const Sum (&sums)[Shape::kTokens / 2], int tokens) const {
    const int share = kTokenBlocks / a_.depth, part = WgmmaTiles::part(a_);
    const int first = static_cast<int>(blockIdx.x) % a_.cluster() - part;
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      if (n * 8 >= tokens) break;
      store_shared_in(first + n / share, given(part, n % share), moved(sums + 4 * n));
    }
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < a_.depth) mbarrier_arrive_in(first + lane, arrived_);
  }

  // Adds up what all blocks along K have sent, in their order, and stores y.
  template <class Own>
  __device__ __forceinline__ void take(const Y& y, const Own& own) const {
    const int share = kTokenBlocks / a_.depth, begin = WgmmaTiles::part(a_) * share;
    mbarrier_wait_cluster(arrived_, 0);
    FS_NO_UNROLL
    for (int n = 0; n < share; ++n) {
      if ((begin + n) * 8 >= y.tokens()) break;
      float4 sum = load_shared<float4>(given(0, n));
      FS_NO_UNROLL
      for (int part = 1; part < a_.depth; ++part) {
        sum = joined<Sum>(sum, load_shared<float4>(given(part, n)));
      }
      y.store(begin + n, own(begin + n, numbers<Sum>(sum)));
    }
  }

  // Shared address of the partial sums of 8 tokens that a block has sent.
  __device__ __forceinline__ uint32_t given(int part, int n) const {
    return buffer_ + (part * (kTokenBlocks / a_.depth) + n) * (32 * uint32_t{sizeof(float4)});
  }

  const WgmmaArguments& a_;
  const int unit_;
  const uint32_t buffer_, arrived_;
};

}  // namespace flashsparse::mma_units
