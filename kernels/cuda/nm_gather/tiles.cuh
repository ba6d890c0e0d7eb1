// SPDX-License-Identifier: Apache-2.0
// y = x W^T for a vector-wise N:M weight, a prefill kernel (many tokens): only kept columns are
// multiplied.
//
//   memory          shared memory                          registers
//   x_tiles         a ring of sections, 128 bytes a    --ldmatrix, one address a lane-->  B of mma
//                   column and 64 tokens                        |
//   values, index   a ring of pairs of steps           -->  A of mma, and row addresses
//
// ldmatrix takes the address of each of its rows from a lane: that *is* the gather, and one serves
// all rows that share an index. Two producer warps copy, one for each ring; compute warps wait for
// nothing else. Quantized values are converted on their way to A. Scales of rows multiply the
// accumulators, scales of groups multiply A.
#pragma once
#include "common/warp.cuh"
#include "cuda/nm_gather/add_sums.cuh"
#include "cuda/nm_gather/tiles_multiplier.cuh"
#include "cuda/nm_gather/tiles_rings.cuh"
#include "cuda/nm_gather/tiles_shape.h"
#include "cuda/nm_gather/tiles_walk.cuh"
#include "cuda/nm_gather/tiles_y.cuh"

namespace flashsparse::nm_gather {

template <class Type, class Shape>
class TileBlock {
 public:
  __device__ __forceinline__ TileBlock(const Weight& weight, const TileArguments& a,
                                       uint32_t shared)
      : weight_(weight),
        a_(a),
        shared_(shared),
        split_(blockIdx.x % a.splits),
        begin_(weight.sections * static_cast<int64_t>(split_) / a.splits),
        end_(weight.sections * static_cast<int64_t>(split_ + 1) / a.splits) {}

  __device__ __forceinline__ void run() const {
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    const int multiplying = a_.row_warps * Shape::kTokenWarps;
    const uint32_t x_stage_bytes = Shape::kTokenTiles * a_.x_tile_bytes;
    const uint32_t stages = sums() + multiplying * Shape::kYBytes;
    RingPlace x(shared_, stages, x_stage_bytes, a_.x_stages);
    RingPlace weights(shared_ + 2 * a_.x_stages * kMbarrierBytes,
                      stages + a_.x_stages * x_stage_bytes, a_.weight_stage_bytes,
                      a_.weight_stages);
    if (threadIdx.x == 0) {
      x.init(multiplying);
      weights.init(multiplying);
      mbarrier_init_done();
    }
    wait_all();
    const TileWalk walk(a_);
    if (warp < multiplying) {
      multiply(x, weights, walk, warp);
    } else {
      if (warp == multiplying) {
        fill_weights<Shape>(weight_, a_, weights, walk, begin_ * weight_.section_pairs,
                            end_ * weight_.section_pairs);
      } else {
        fill_x<Shape>(weight_, a_, x, walk, begin_, end_);
      }
      if (a_.splits > 1) wait_read();
    }
    if (a_.splits > 1) {
      wait_all();
      add_sums(walk);
    }
  }

 private:
  static constexpr uint32_t kPartBytes = Shape::kTokens * Shape::kSumStride * sizeof(float);

  __device__ __forceinline__ void multiply(RingPlace x, RingPlace weights, TileWalk walk,
                                           int warp) const {
    const int row_warp = warp / Shape::kTokenWarps;
    const int token_warp = warp - row_warp * Shape::kTokenWarps;
    TileMultiplier<Type, Shape> multiplier(a_, row_warp, token_warp);
    FS_NO_UNROLL
    for (; !walk.ended(); walk.advance()) {
      multiplier.clear();
      FS_NO_UNROLL
      for (int section = begin_; section < end_; ++section) {
        const int column = section * weight_.section_columns;
        const uint32_t second_panel =
            (block_begin(column + weight_.panel_columns) - block_begin(column)) * 128;
        x.wait_full();
        FS_NO_UNROLL
        for (int pair = 0; pair < weight_.section_pairs; ++pair) {
          weights.wait_full();
          FS_UNROLL
          for (int step = 0; step < 2; ++step) {
            const bool first = pair * 2 + step < weight_.panel_steps;
            multiplier.multiply(step, x.memory() + (first ? 0 : second_panel), weights.memory());
          }
          weights.release();
          weights.advance();
        }
        x.release();
        x.advance();
      }
      if (a_.splits == 1) {
        store_tile<Type, Shape>(multiplier.sums, a_, weight_.row_scales,
                                (walk.row_block * a_.row_warps + row_warp) * Shape::kUnitRows,
                                walk.token_block * Shape::kTokens + token_warp * Shape::kWarpTokens,
                                sums() + warp * Shape::kYBytes);
      }
    }
    if (a_.splits == 1) return;
    wait_read();  // accumulators overwrite both rings
    store_sums<Shape>(
        multiplier.sums,
        sums() + row_warp * kPartBytes + token_warp * (Shape::kWarpTokens * Shape::kSumStride * 4),
        threadIdx.x % 32);
  }

  // A barrier of the cluster if splits are a cluster, else of the block.
  __device__ __forceinline__ void wait_all() const {
    if (a_.split_cluster) {
      sync_cluster();
    } else {
      __syncthreads();
    }
  }
  // A barrier of all threads of the block, called from several loops.
  __device__ __forceinline__ void wait_read() const { sync_threads_of(1, blockDim.x); }

  __device__ __forceinline__ void add_sums(const TileWalk& walk) const {
    const int token = walk.token_block * Shape::kTokens;
    const int64_t blocks_before = int64_t{walk.token_block} * a_.row_blocks;
    const SumsOfBlock own{a_.y + int64_t{token} * a_.rows,
                          a_.bias,
                          weight_.row_scales,
                          a_.x_scales ? a_.x_scales + token : nullptr,
                          a_.partials + blocks_before * a_.splits *
                                            (a_.row_warps * Shape::kUnitRows * Shape::kTokens),
                          a_.arrivals + blocks_before,
                          a_.rows,
                          min(Shape::kTokens, a_.tokens - token),
                          a_.row_warps,
                          1,
                          walk.row_block,
                          a_.row_blocks,
                          split_,
                          a_.splits,
                          shared_ + static_cast<uint32_t>(kTileBarrierBytes - kFlagBytes)};
    const AddSums<Type, Shape> adding(own, sums());
    if (a_.split_cluster) {
      adding.run_in_cluster();
      sync_cluster();  // no block ends while others read its partial sums
    } else {
      adding.run();
    }
  }

  // After the barriers: a buffer for each warp's part of y, then the rings; or the sums of a split.
  __device__ __forceinline__ uint32_t sums() const {
    return shared_ + static_cast<uint32_t>(kTileBarrierBytes);
  }

  const Weight& weight_;
  const TileArguments& a_;
  const uint32_t shared_;
  const int split_, begin_, end_;  // sections
};

// Launch with TilesPlan::blocks() blocks in the plan's clusters or, without splits, with at most as
// many blocks as run at once; with TilesPlan::threads() threads and TilesPlan::shared_bytes() of
// dynamic shared memory.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    tiles_kernel(const Weight weight, const TileArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  TileBlock<Type, Shape>(weight, arguments, shared_address(shared)).run();
}

struct CompiledTiles {
  void (*float16)(Weight, TileArguments);
  void (*bfloat16)(Weight, TileArguments);
};

#define FS_NM_TILES_COMPILED(...)                          \
  {tiles_kernel<Float16, TileShape<__VA_ARGS__, kValues>>, \
   tiles_kernel<BFloat16, TileShape<__VA_ARGS__, kValues>>},
// `shape`: index of kTileShapes, one for the bits of kValues.
template <ValueType kValues>
CompiledTiles compiled_tiles(int shape) {
  const int index = shape - first_tile_shape(bits_of(kValues));
  if constexpr (bits_of(kValues) == 16) {
    constexpr CompiledTiles kernels[] = {FS_NM_TILES_SHAPES(FS_NM_TILES_COMPILED)};
    return kernels[index];
  } else if constexpr (bits_of(kValues) == 4) {
    constexpr CompiledTiles kernels[] = {FS_NM_TILES_SHAPES_4(FS_NM_TILES_COMPILED)};
    return kernels[index];
  } else {
    constexpr CompiledTiles kernels[] = {FS_NM_TILES_SHAPES_8(FS_NM_TILES_COMPILED)};
    return kernels[index];
  }
}
#undef FS_NM_TILES_COMPILED

#ifdef __CUDACC__  // each in a source file of its own: instances.cmake
#define FS_EXTERN(name, ...) \
  extern template CompiledTiles compiled_tiles<ValueType::k##name>(int shape);
FS_EXTERN(Native)
FS_QUANTIZED_TYPES(FS_EXTERN)
#undef FS_EXTERN
#endif

inline CompiledTiles compiled_tiles(int shape, ValueType values) {
  return with_type(values, [&](auto type) { return compiled_tiles<decltype(type)::value>(shape); });
}

// The arguments that follow from the plan.
inline void fill(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                 const TilesPlan& plan, TileArguments& arguments) {
  arguments.x_columns = static_cast<int>(x_tile_columns(layout, cols));
  arguments.rows = static_cast<int>(rows);
  arguments.tokens = static_cast<int>(tokens);
  arguments.units = static_cast<int>(layout.units(rows));
  arguments.row_warps = plan.row_warps;
  arguments.x_stages = plan.x_stages;
  arguments.weight_stages = plan.weight_stages;
  arguments.band = plan.band;
  arguments.splits = plan.splits;
  arguments.split_cluster = plan.cluster > 1;
  arguments.row_blocks = static_cast<int>(plan.row_blocks(rows));
  arguments.token_blocks = static_cast<int>(plan.token_blocks(tokens));
  arguments.x_tile_bytes = static_cast<uint32_t>(TilesPlan::stage_rows(layout) * kTileTokens * 2);
  arguments.weight_stage_bytes = static_cast<uint32_t>(plan.weight_stage_bytes(layout));
}

}  // namespace flashsparse::nm_gather
