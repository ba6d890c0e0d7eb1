// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for a dense weight and a few tokens, on CUDA cores. A warp has a few rows of W
// and copies 512 bytes of each at a time, 16 for each lane, several steps ahead. A lane multiplies
// its columns by the same columns of x, and has an accumulator for each row and token. Unlike
// flat_gemm.cuh it does not pad tokens, and has nearly no prologue; from about 4 tokens on the
// multiplications take longer than the loads (FlashDecoding++, section 5, calls it ImplA).
#pragma once
#include "cuda/dense/dense.cuh"
#include "cuda/dense/dense_plan.h"

namespace flashsparse::dense {

// What a kernel is compiled for; dense_plan.h decides which one runs.
//   kTokens   of y at most
//   kRows     rows of a warp; they share the x that it loads and converts
//   kWarpsN   warps along the rows of W
//   kWarpsK   warps along K, which take steps round-robin
//   kStages   steps of W in shared memory: the current one and those in flight
//   kBlocks   blocks on a multiprocessor, which bounds the registers
template <int kTokens_, int kRows_, int kWarpsN_, int kWarpsK_, int kStages_, int kBlocks_>
struct GemvShape {
  static constexpr int kTokens = kTokens_, kRows = kRows_, kStages = kStages_;
  static constexpr int kWarpsN = kWarpsN_, kWarpsK = kWarpsK_, kBlocks = kBlocks_;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  static constexpr int kSums = kTokens * kRows;  // of a warp, token by token
  using Weights = Ring<kRows, kStages>;
  static constexpr uint32_t kSharedBytes =
      kWarpsN * kWarpsK * Weights::kWarpBytes;  // reused for the sums
  static_assert(kSums <= 32 && (kSums & (kSums - 1)) == 0, "warp_sums");
};

// Sums each of `count` values, a power of two up to 32, over the lanes of the warp: lane i gets the
// sum of value i / (32 / count). Each step sends half of the values to the other half of the lanes,
// until one value is left.
template <int lanes, int count>
__device__ __forceinline__ float warp_sums(float (&values)[count]) {
  if constexpr (lanes == 0) {
    return values[0];
  } else {
    constexpr int kHalf = lanes * count / 32;  // half of the values that are left
    const bool upper = threadIdx.x & lanes;
    if constexpr (kHalf == 0) values[0] += __shfl_xor_sync(~0u, values[0], lanes);
    FS_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      const float kept = upper ? values[kHalf + i] : values[i];
      const float sent = upper ? values[i] : values[kHalf + i];
      values[i] = kept + __shfl_xor_sync(~0u, sent, lanes);
    }
    return warp_sums<lanes / 2>(values);
  }
}

template <class Type>
__device__ __forceinline__ float2 to_floats(const uint4& chunk, int pair) {
  const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  return make_float2(to_float<Type>(static_cast<uint16_t>(pairs[pair])),
                     to_float<Type>(static_cast<uint16_t>(pairs[pair] >> 16)));
}

// Launch with ceil(rows / (kWarpsN * kRows)) blocks of Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory. kAligned needs 16-byte aligned rows of the weight,
// and cols a multiple of 8.
template <class Type, class Shape, bool kAligned>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) gemv_kernel(const Arguments a) {
  constexpr int kStages = Shape::kStages, kRows = Shape::kRows, kTokens = Shape::kTokens;
  constexpr int kStride = Shape::kWarpsK * kGemvStepCols;  // columns to a warp's next step
  const int lane = threadIdx.x % 32, warp = warp_of_block();
  const int warp_n = warp % Shape::kWarpsN, warp_k = warp / Shape::kWarpsN;
  const int first_row = (blockIdx.x * Shape::kWarpsN + warp_n) * kRows;
  int column = warp_k * kGemvStepCols + lane * kChunk;  // of the lane's current chunk
  const uint16_t* const weight = a.weight + static_cast<int64_t>(first_row) * a.weight_stride;

  FS_DYNAMIC_SHARED(shared);
  const uint32_t shared_at = shared_address(shared);
  typename Shape::Weights ring(shared_at, warp);
  // Starts to copy W for the step that is `steps` after `column`.
  const auto start_w = [&](int steps) {
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) {  // past the last row, that one is copied again
      const int row = min(r, a.rows - 1 - first_row) * a.weight_stride;
      start_chunk<kAligned>(ring.to(r), weight + (row + column) + steps * kStride,
                            column + steps * kStride, a.cols);
    }
  };
  uint4 x_chunks[kTokens] = {};
  const auto load_x = [&] {
    FS_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (t < a.tokens) {
        x_chunks[t] =
            load_readonly(reinterpret_cast<const uint4*>(a.x + (t * a.x_stride + column)));
      }
    }
  };
  float sums[Shape::kSums] = {};
  const auto multiply = [&] {
    uint4 w_chunks[kRows];
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) w_chunks[r] = ring.chunk(r);
    FS_UNROLL
    for (int pair = 0; pair < kChunk / 2; ++pair) {
      float2 x_pair[kTokens];
      FS_UNROLL
      for (int t = 0; t < kTokens; ++t) x_pair[t] = to_floats<Type>(x_chunks[t], pair);
      FS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float2 w_pair = to_floats<Type>(w_chunks[r], pair);
        FS_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          float& sum = sums[t * kRows + r];
          sum = fmaf(w_pair.y, x_pair[t].y, fmaf(w_pair.x, x_pair[t].x, sum));
        }
      }
    }
  };

  // If K ends inside of a step, some lanes have one step less than others.
  constexpr int kAhead = kStages - 1;
  int left = a.cols > column ? (a.cols - column - 1) / kStride + 1 : 0;
  FS_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    if (i < left) start_w(i);
    ring.commit();
  }
  FS_NO_UNROLL
  for (; left > 0; --left) {
    load_x();
    if (left > kAhead) start_w(kAhead);
    ring.commit();
    ring.wait();
    multiply();
    ring.advance();
    column += kStride;
  }

  const float sum = warp_sums<16>(sums);
  constexpr int kLanes = 32 / Shape::kSums;  // lanes that have the same sum
  __syncthreads();                           // every warp has read the weights that are overwritten
  if (lane % kLanes == 0) {
    const int place = (warp_k * Shape::kWarpsN + warp_n) * Shape::kSums + lane / kLanes;
    store_shared(shared_at + place * uint32_t{sizeof(float)}, sum);
  }
  __syncthreads();
  FS_NO_UNROLL
  for (int i = threadIdx.x; i < Shape::kWarpsN * Shape::kSums; i += Shape::kThreads) {
    const int token = i % Shape::kSums / kRows;
    const int row = (blockIdx.x * Shape::kWarpsN + i / Shape::kSums) * kRows + i % kRows;
    if (token >= a.tokens || row >= a.rows) continue;
    float total = a.bias ? to_float<Type>(a.bias[row]) : 0.0f;
    FS_UNROLL
    for (int k = 0; k < Shape::kWarpsK; ++k) {  // in the order of warps
      const int place = k * Shape::kWarpsN * Shape::kSums + i;
      total += load_shared<float>(shared_at + place * uint32_t{sizeof(float)});
    }
    store_global(a.y + (static_cast<int64_t>(token) * a.rows + row), from_float<Type>(total));
  }
}

struct CompiledGemv {
  void (*float16)(Arguments);
  void (*bfloat16)(Arguments);
  int threads;
  uint32_t shared_bytes;
};

template <bool kAligned, class Shape>
constexpr CompiledGemv compiled_gemv() {
  return {gemv_kernel<Float16, Shape, kAligned>, gemv_kernel<BFloat16, Shape, kAligned>,
          Shape::kThreads, Shape::kSharedBytes};
}
#define FS_COMPILED(...) compiled_gemv<true, GemvShape<__VA_ARGS__>>(),
// Indexed like kGemvShapes.
inline const CompiledGemv kCompiledGemv[] = {
    FS_GEMV_SHAPES(FS_COMPILED) compiled_gemv<false, GemvShape<FS_UNALIGNED_GEMV_SHAPE>>()};
#undef FS_COMPILED

}  // namespace flashsparse::dense
