// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for a dense weight and few tokens (FlashDecoding++, section 4): a product that
// is bound by the memory that W comes from, whatever multiplies it. So nothing is done to W on its
// way:
//
//   weights     16 bytes a lane, several copies of each row block under way, to a place in shared
//               memory that is that lane's alone (dense::Ring). W is mma's B operand, 8 rows of it
//               at a time, and x its A operand. The columns may be multiplied in any order as long
//               as W and x agree, so the 16 bytes that a lane has of a row are the operands of two
//               mma as they come.
//   tokens      padded to 8 in memory: of the 16 rows that mma's A has, those beyond are zeros that
//               nobody loads. x comes through L1, where the warps that share its columns meet it, a
//               step ahead of its use.
//   K           cut between the warps of a block, which take its steps of 32 columns by turns and
//               so read side by side, and between blocks where there are too few rows for all
//               multiprocessors.
//
// The paper double-buffers tiles in shared memory; here a lane has kStages buffers of its own, and
// no warp waits for another until the sums are added up: those of the warps in shared memory, those
// of the blocks in fp32 in `partials`, by the block that arrives last, in the order of blocks. One
// launch, and the same bits every time.
#pragma once
#include "cuda/dense.cuh"
#include "cuda/dense_plan.h"

namespace flashsparse::dense {

struct FlatArguments {
  Arguments dense;
  float* partials;     // [row blocks][split][tokens of the shape][rows of a block]
  uint32_t* arrivals;  // [row blocks], all zero before and after
};

// What a kernel is compiled for; which one runs is decided in dense_plan.h.
//   kTokens      of y at most: 8, 16, 32 or 64
//   kRowBlocks   of 8 rows, of a warp: they share the x that it loads
//   kWarpsN      warps along the rows of W, which share x in L1
//   kWarpsK      warps along K
//   kStages      steps of W in shared memory: this one and those under way
//   kBlocks      blocks a multiprocessor, which bounds the registers
template <int kTokens_, int kRowBlocks_, int kWarpsN_, int kWarpsK_, int kStages_, int kBlocks_>
struct FlatShape {
  static constexpr int kTokens = kTokens_, kRowBlocks = kRowBlocks_, kStages = kStages_;
  static constexpr int kWarpsN = kWarpsN_, kWarpsK = kWarpsK_, kBlocks = kBlocks_;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  static constexpr int kRows = 8 * kRowBlocks * kWarpsN;
  static constexpr int kFragments = (kTokens + 15) / 16;  // of 16 tokens
  // Sums of one fragment's tokens are added up at a time.
  static constexpr int kRoundTokens = kTokens < 16 ? kTokens : 16;
  using Weights = Ring<kRowBlocks, kStages>;
  static constexpr uint32_t kRingBytes = kWarpsN * kWarpsK * Weights::kWarpBytes;
  static constexpr uint32_t kSumBytes = kWarpsK * kRoundTokens * kRows * sizeof(float);
  static constexpr uint32_t kSharedBytes = kRingBytes;  // and later the sums, and a flag
  static_assert(kSumBytes + sizeof(uint32_t) <= kRingBytes);
  static_assert(kRows % 32 == 0, "for the swizzle of the sums");
};

// The sums of a warp's fragment lie as [token][row], the rows swizzled so that the stores (two rows
// a lane, of 4 tokens) and the loads (four rows a lane, of one token) spread over the banks.
template <class Shape>
__device__ __forceinline__ uint32_t sum_place(int token, int row) {
  return (token * Shape::kRows + (row ^ token % 4 * 8)) * sizeof(float);
}

// One block: kRows rows of W by a part of its columns.
template <class Type, class Shape, bool kAligned>
class FlatBlock {
 public:
  __device__ __forceinline__ FlatBlock(const FlatArguments& a, uint32_t shared)
      : a_(a.dense),
        weight_(a_.weight + static_cast<int64_t>(blockIdx.x) * Shape::kRows * a_.weight_stride),
        partials_(a.partials),
        arrivals_(a.arrivals),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_n_(warp_of_block() % Shape::kWarpsN),
        warp_k_(warp_of_block() / Shape::kWarpsN),
        ring_(shared, warp_of_block()) {}

  __device__ __forceinline__ void run() {
    const uint32_t steps = (a_.cols + kFlatStepCols - 1) / kFlatStepCols;
    const int begin = steps * blockIdx.y / gridDim.y;
    const int end = steps * (blockIdx.y + 1) / gridDim.y;
    const int whole = a_.cols / kFlatStepCols;
    const int first = begin + warp_k_;
    const int stop = min(end, whole);
    multiply_steps(first, stop > first ? (stop - first - 1) / Shape::kWarpsK + 1 : 0);
    // What is left of K has no step of its own to hide behind.
    if (whole < end && (whole - begin) % Shape::kWarpsK == warp_k_) multiply_rest(whole);
    add_warps();
    if (gridDim.y > 1) add_blocks();
  }

 private:
  static constexpr int kHalves = Shape::kTokens < 16 ? 1 : 2;     // of a fragment, 8 tokens each
  static constexpr int kStride = Shape::kWarpsK * kFlatStepCols;  // columns to a warp's next step
  static constexpr int kQuads = Shape::kRows / 4;

  // ---- multiplying ----------------------------------------------------------------------------

  __device__ __forceinline__ bool has_token(int f, int half) const {
    return 16 * f + 8 * half + lane_ / 4 < a_.tokens;
  }
  // Where this lane's row of row block r begins, from the block's first row on; beyond the last row
  // another time the last one.
  __device__ __forceinline__ int row_place(int r) const {
    const int row = (warp_n_ * Shape::kRowBlocks + r) * 8 + lane_ / 4;
    return min(row, a_.rows - 1 - static_cast<int>(blockIdx.x) * Shape::kRows) * a_.weight_stride;
  }
  __device__ __forceinline__ int x_place(int f, int half) const {
    return (16 * f + 8 * half + lane_ / 4) * a_.x_stride;
  }

  // Steps first, first + kWarpsK, ...: `count` whole ones.
  __device__ __forceinline__ void multiply_steps(int first, int count) {
    int column = first * kFlatStepCols + lane_ % 4 * kChunk;  // of the lane's next chunk
    int rows[Shape::kRowBlocks];
    FS_UNROLL
    for (int r = 0; r < Shape::kRowBlocks; ++r) rows[r] = row_place(r);

    // Of the step so many after `column`.
    const auto start_w = [&](int steps) {
      FS_UNROLL
      for (int r = 0; r < Shape::kRowBlocks; ++r) {
        start_chunk<kAligned>(ring_.to(r), weight_ + (rows[r] + column) + steps * kStride,
                              column + steps * kStride, a_.cols);
      }
    };
    const auto load_x = [&](int steps) {
      FS_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
        FS_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          if (!has_token(f, half)) continue;
          x_[f][half] = load_readonly(
              reinterpret_cast<const uint4*>(a_.x + (x_place(f, half) + column) + steps * kStride));
        }
      }
    };

    constexpr int kAhead = Shape::kStages - 1;
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (i < count) start_w(i);
      ring_.commit();
    }
    if (count > 0) load_x(0);
    FS_NO_UNROLL
    for (int left = count; left > 0; --left) {
      if (left > kAhead) start_w(kAhead);
      ring_.commit();
      ring_.wait();
      take_x();
      if (left > 1) load_x(1);
      FS_UNROLL
      for (int r = 0; r < Shape::kRowBlocks; ++r) w_[r] = ring_.chunk(r);
      multiply();
      ring_.advance();
      column += kStride;
    }
  }

  // A step that K ends in.
  __device__ __forceinline__ void multiply_rest(int step) {
    const int column = step * kFlatStepCols + lane_ % 4 * kChunk;
    FS_UNROLL
    for (int r = 0; r < Shape::kRowBlocks; ++r) {
      w_[r] = load_elements(weight_ + (row_place(r) + column), column, a_.cols);
    }
    FS_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      FS_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        x_[f][half] = make_uint4(0, 0, 0, 0);
        if (!has_token(f, half) || column >= a_.cols) continue;
        x_[f][half] =
            load_readonly(reinterpret_cast<const uint4*>(a_.x + (x_place(f, half) + column)));
      }
    }
    take_x();
    multiply();
  }

  // mma wants its four registers of A side by side. A real instruction puts them there, once: of
  // moves the compiler would make one for every use.
  __device__ __forceinline__ void take_x() {
    FS_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint4& chunk = x_[f][half < kHalves ? half : 0];
        const bool valid = half < kHalves && has_token(f, half);
        operands_[f][0][half] = valid ? chunk.x : 0;
        operands_[f][0][half + 2] = valid ? chunk.y : 0;
        operands_[f][1][half] = valid ? chunk.z : 0;
        operands_[f][1][half + 2] = valid ? chunk.w : 0;
      }
    }
  }

  __device__ __forceinline__ void multiply() {
    FS_UNROLL
    for (int r = 0; r < Shape::kRowBlocks; ++r) {
      FS_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
        mma_m16n8k16<Type>(sums_[r][f], operands_[f][0], w_[r].x, w_[r].y);
      }
    }
    FS_UNROLL
    for (int r = 0; r < Shape::kRowBlocks; ++r) {
      FS_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
        mma_m16n8k16<Type>(sums_[r][f], operands_[f][1], w_[r].z, w_[r].w);
      }
    }
  }

  // ---- adding up ------------------------------------------------------------------------------

  // The warps along K, in their order: to y, or to the block's place in `partials`.
  __device__ __forceinline__ void add_warps() {
    constexpr uint32_t kWarpBytes = Shape::kRoundTokens * Shape::kRows * sizeof(float);
    FS_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      __syncthreads();  // for f == 0: every warp has read its weights, which lie where the sums go
      const uint32_t mine = shared_ + warp_k_ * kWarpBytes;
      FS_UNROLL
      for (int r = 0; r < Shape::kRowBlocks; ++r) {
        FS_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          const int row = (warp_n_ * Shape::kRowBlocks + r) * 8 + lane_ % 4 * 2;
          store_shared(mine + sum_place<Shape>(8 * half + lane_ / 4, row),
                       make_float2(sums_[r][f][2 * half], sums_[r][f][2 * half + 1]));
        }
      }
      __syncthreads();
      const int tokens = min(a_.tokens - 16 * f, Shape::kRoundTokens);
      FS_NO_UNROLL
      for (int i = threadIdx.x; i < tokens * kQuads; i += Shape::kThreads) {
        const uint32_t place = shared_ + sum_place<Shape>(i / kQuads, i % kQuads * 4);
        float4 sum = load_shared<float4>(place);
        FS_UNROLL
        for (int k = 1; k < Shape::kWarpsK; ++k) {
          sum = add(sum, load_shared<float4>(place + k * kWarpBytes));
        }
        const int quad = 16 * f * kQuads + i;
        if (gridDim.y == 1) {
          store_y(quad, sum);
        } else {
          store_global(partials(blockIdx.y) + quad, sum);
        }
      }
    }
  }

  // Of the blocks that share rows, the last one to arrive adds up what all of them have left.
  __device__ __forceinline__ void add_blocks() {
    __syncthreads();
    if (threadIdx.x == 0) store_shared(shared_ + Shape::kSumBytes, arrive(arrivals_ + blockIdx.x));
    __syncthreads();
    if (load_shared<uint32_t>(shared_ + Shape::kSumBytes) != gridDim.y - 1) return;
    if (threadIdx.x == 0) arrivals_[blockIdx.x] = 0;

    constexpr int kAhead = 4;  // many loads at once: each takes its time
    const int blocks = gridDim.y;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < a_.tokens * kQuads; quad += Shape::kThreads) {
      float4 sum = make_float4(0, 0, 0, 0);
      FS_NO_UNROLL
      for (int block = 0; block < blocks; block += kAhead) {
        float4 parts[kAhead];
        FS_UNROLL
        for (int b = 0; b < kAhead; ++b) {
          parts[b] = load_l2(partials(min(block + b, blocks - 1)) + quad);
        }
        FS_UNROLL
        for (int b = 0; b < kAhead; ++b) {  // in the order of blocks
          if (block + b < blocks) sum = add(sum, parts[b]);
        }
      }
      store_y(quad, sum);
    }
  }

  __device__ __forceinline__ float4* partials(int part) const {
    const int64_t slot = int64_t{blockIdx.x} * gridDim.y + part;
    return reinterpret_cast<float4*>(partials_) + slot * (Shape::kTokens * kQuads);
  }

  // Sums are numbered by quads, four rows of a token.
  __device__ __forceinline__ void store_y(int quad, const float4& sum) const {
    const int first = blockIdx.x * Shape::kRows + quad % kQuads * 4;
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
    uint16_t* const place = a_.y + (static_cast<int64_t>(quad / kQuads) * a_.rows + first);
    uint16_t values[4];
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool inside = first + i < a_.rows;
      const float bias = a_.bias && inside ? to_float<Type>(a_.bias[first + i]) : 0.0f;
      values[i] = from_float<Type>(sums[i] + bias);
    }
    if (a_.rows % 4 == 0) {
      if (first < a_.rows) {
        store_global(reinterpret_cast<uint2*>(place),
                     make_uint2(values[0] | uint32_t{values[1]} << 16,
                                values[2] | uint32_t{values[3]} << 16));
      }
    } else {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first + i < a_.rows) store_global(place + i, values[i]);
      }
    }
  }

  static __device__ __forceinline__ float4 add(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  const Arguments& a_;
  const uint16_t* const weight_;  // the block's first row
  float* const partials_;
  uint32_t* const arrivals_;
  const uint32_t shared_;
  const int lane_, warp_n_, warp_k_;
  typename Shape::Weights ring_;

  uint4 x_[Shape::kFragments][kHalves] = {};         // of the next step
  uint32_t operands_[Shape::kFragments][2][4] = {};  // of this one, for its two mma
  uint4 w_[Shape::kRowBlocks] = {};
  float sums_[Shape::kRowBlocks][Shape::kFragments][4] = {};
};

// Launch with ceil(rows / Shape::kRows) x split blocks of Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory. Where kAligned, every row of the weight lies on 16
// bytes and cols is a multiple of 8.
template <class Type, class Shape, bool kAligned>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    flat_gemm_kernel(const FlatArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  FlatBlock<Type, Shape, kAligned>(arguments, shared_address(shared)).run();
}

struct CompiledFlat {
  void (*float16)(FlatArguments);
  void (*bfloat16)(FlatArguments);
  int threads;
  uint32_t shared_bytes;
};

template <bool kAligned, class Shape>
constexpr CompiledFlat compiled_flat() {
  return {flat_gemm_kernel<Float16, Shape, kAligned>, flat_gemm_kernel<BFloat16, Shape, kAligned>,
          Shape::kThreads, Shape::kSharedBytes};
}
#define FS_COMPILED(...) compiled_flat<true, FlatShape<__VA_ARGS__>>(),
// By the index of kFlatShapes.
inline const CompiledFlat kCompiledFlat[] = {
    FS_FLAT_SHAPES(FS_COMPILED) compiled_flat<false, FlatShape<FS_UNALIGNED_FLAT_SHAPE>>()};
#undef FS_COMPILED

}  // namespace flashsparse::dense
