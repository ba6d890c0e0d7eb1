// SPDX-License-Identifier: Apache-2.0
// y = x W^T for a vector-wise N:M weight whose index is shared by 64 or 128 rows, a prefill kernel
// on Hopper: x is packed to kept columns, of which the tensor cores then compute a dense product.
//
//   memory    x_tiles --a warpgroup packs-->  a ring in shared memory: B, kept columns x tokens
//                                                  |  full, empty
//             values  --4 pairs at a time-->  two warpgroups, 64 rows each: A in registers
//                                                  |
//             y       <--through shared memory--  accumulators, 64 x 256 tokens a warpgroup
//
// Blocks are persistent and take one tile of y after the other, so that x of the next tile is
// packed and its weights are loaded while the last one is written. Source: NM-SpMM, section III
// (packing), with the stages of its pipeline as specialized warps.
#pragma once
#include "common/registers.cuh"
#include "cuda/nm_gather/pack_x.cuh"
#include "cuda/nm_gather/packed_y.cuh"

namespace flashsparse::nm_gather {

// The weights of a warp: 16 rows of a unit, a vector of 16 bytes for each lane and step.
template <class Shape>
class WeightRows {
 public:
  __device__ __forceinline__ WeightRows(const Weight& weight, int units, const PackedTile& tile,
                                        int group) {
    constexpr int kVectors = 4;  // of a unit, for each pair and lane
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = tile.row * Shape::kRows + Shape::first_row(group) + warp * 16;
    const int unit = min(row / 32, units - 1);
    next_ = weight.values + int64_t{unit} * weight.pairs * (kVectors * 32) + warp % 2 * 32 + lane;
    left_ = weight.pairs;
  }

  // Starts to load the next pair, if there is one.
  __device__ __forceinline__ void load(uint32_t (&a)[2][4]) {
    if (left_-- <= 0) return;
    FS_UNROLL
    for (int step = 0; step < 2; ++step) {
      // If both warpgroups have the same rows, the second one finds them in the L1.
      const uint4* const from = next_ + step * 64;
      const uint4 v = Shape::kRows == 64 ? *from : load_streaming(from);
      a[step][0] = v.x, a[step][1] = v.y, a[step][2] = v.z, a[step][3] = v.w;
    }
    next_ += 128;
  }

 private:
  const uint4* next_;
  int left_;
};

template <class Type, class Shape>
class Multiply {
 public:
  __device__ __forceinline__ Multiply(const Weight& weight, const PackedArguments& a,
                                      uint32_t shared, int group)
      : weight_(weight),
        a_(a),
        group_(group),
        store_(a, shared, group),
        full_(shared),
        emptied_(shared) {}

  __device__ __forceinline__ void run() {
    const int tiles = a_.row_tiles * a_.token_tiles, step = gridDim.x;
    PackedTile tile(a_, blockIdx.x);
    WeightRows<Shape> rows = begin(tile);
    FS_NO_UNROLL
    for (int number = blockIdx.x; number < tiles; number += step) {
      multiply(rows);
      const PackedTile done = tile;
      if (number + step < tiles) {
        tile = PackedTile(a_, number + step);
        rows = begin(tile);
      }
      store_.run(sums_, done);
    }
  }

 private:
  // Starts to load the first weights of a tile.
  __device__ __forceinline__ WeightRows<Shape> begin(const PackedTile& tile) {
    WeightRows<Shape> rows(weight_, a_.units, tile, group_);
    load(rows, 0);
    return rows;
  }

  // Loads a whole batch at once, while two products run: wgmma_begin waits for all loads to
  // registers that are in flight, whatever they are for. With loads before each pair a pair took as
  // long as they did, however many pairs ahead they were.
  __device__ __forceinline__ void load(WeightRows<Shape>& rows, int half) {
    keep_order();  // ptxas would move the loads in front of the wgmma_begin of these products
    FS_UNROLL
    for (int i = 0; i < Shape::kBatch; ++i) rows.load(values_[half][i]);
  }

  __device__ __forceinline__ void multiply(WeightRows<Shape>& rows) {
    FS_UNROLL
    for (int i = 0; i < Shape::kTokens / 2; ++i) sums_[i] = 0;
    wgmma_hold(sums_);
    FS_NO_UNROLL
    for (int first = 0; first < weight_.pairs; first += 2 * Shape::kBatch) {
      FS_UNROLL
      for (int i = 0; i < 2 * Shape::kBatch; ++i) {
        const int half = i / Shape::kBatch, slot = i % Shape::kBatch;
        if (first + i < weight_.pairs) {
          multiply_pair(values_[half][slot]);
          if (slot == Shape::kBatch - 1) load(rows, 1 - half);
          wgmma_wait_but<1>();
          if (first + i > 0) empty();
        }
      }
    }
    wgmma_wait(sums_);
    empty();
  }

  __device__ __forceinline__ void multiply_pair(const uint32_t (&a)[2][4]) {
    mbarrier_wait(full_.full(), full_.parity());
    const uint64_t b = gathered_operand<kPair>(full_.begin() + Shape::first_slab(group_));
    wgmma_begin();
    wgmma_gathered<Type, Shape::kTokens>(sums_, a[0], b);
    wgmma_gathered<Type, Shape::kTokens>(sums_, a[1], wgmma_moved(b, kStep * kSlabRowBytes));
    wgmma_commit();
    full_.move();
  }

  // Releases the oldest stage: the warp's products with it have ended.
  __device__ __forceinline__ void empty() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(emptied_.empty());
    emptied_.move();
  }

  const Weight& weight_;
  const PackedArguments& a_;
  const int group_;
  const StoreY<Type, Shape> store_;
  RingPlace<Shape> full_, emptied_;
  uint32_t values_[2][Shape::kBatch][2][4];  // one half is being multiplied, the other loaded
  float sums_[Shape::kTokens / 2];
};

// Launch with gridDim.x = the number of multiprocessors, or of tiles if there are fewer,
// Shape::kThreads threads and Shape::kSharedBytes of dynamic shared memory. Empty except on sm_90a.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    packed_kernel(const Weight weight, const PackedArguments arguments) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = shared_address(dynamic);
  if (threadIdx.x == 0) init_ring<Shape>(shared);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    setmaxnreg_dec<Shape::kPackRegisters>();
    PackX<Shape>(weight, arguments, shared).run();
  } else {
    setmaxnreg_inc<Shape::kMultiplyRegisters>();
    Multiply<Type, Shape>(weight, arguments, shared, warpgroup - 1).run();
  }
#endif
}

struct PackedCompiled {
  void (*float16)(Weight, PackedArguments);
  void (*bfloat16)(Weight, PackedArguments);
  int threads;
  uint32_t shared_bytes;
};

#define FS_NM_PACKED_COMPILED(...)                                                        \
  {packed_kernel<Float16, PackedShape<__VA_ARGS__>>,                                      \
   packed_kernel<BFloat16, PackedShape<__VA_ARGS__>>, PackedShape<__VA_ARGS__>::kThreads, \
   PackedShape<__VA_ARGS__>::kSharedBytes},
// By the index of kPackedShapes.
inline const PackedCompiled kPackedCompiled[] = {FS_NM_PACKED_SHAPES(FS_NM_PACKED_COMPILED)};
#undef FS_NM_PACKED_COMPILED

}  // namespace flashsparse::nm_gather
