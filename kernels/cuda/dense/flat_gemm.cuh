// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for a dense weight and few tokens (FlashDecoding++, section 4): bound by reading
// W from memory, whatever multiplies it. So W takes the shortest path:
//
//   weights     Whole lines of 128 bytes, 64 columns of a row, are copied to lines of shared
//               memory, some steps ahead. (Copying half a line takes as long as a whole one: with
//               pieces of 64 bytes an H200 reads 3.2 TB/s, with 128 bytes 4.5;
//               benchmarks/gpu/copies.cu.) W is mma's A operand, 16 rows at a time.
//   tokens      x is mma's B operand, so tokens are padded to a multiple of 8 only. Its lines are
//               copied with those of W, as if they were more rows of it; past the last token they
//               are zeros, which are not read from memory.
//   K           is divided between the warps of a block, which take steps of 64 columns round-robin
//               and so read adjacent memory, and between blocks if there are too few rows for all
//               multiprocessors.
//
// The paper double-buffers tiles in shared memory. Here a warp has kStages buffers of its own, and
// no warp waits for another before the reduction: partial sums of warps are added up in shared
// memory, those of blocks in fp32 in `partials`, by the block that arrives last, in the order of
// blocks. One launch, and the same bits every time.
#pragma once
#include "common/registers.cuh"
#include "cuda/dense/dense.cuh"
#include "cuda/dense/dense_plan.h"
#include "cuda/shared/linear_y.cuh"
#include "cuda/shared/partial_sums.cuh"

namespace flashsparse::dense {

struct FlatArguments {
  Arguments dense;
  float* partials;     // [row blocks][split][tokens of the shape][rows of a block]
  uint32_t* arrivals;  // [row blocks], all zero before and after
};

// What a kernel is compiled for; dense_plan.h decides which one runs.
//   kTokens      of y at most: 8, 16, 32 or 64
//   kRowBlocks   blocks of 16 rows for a warp; they share the x that it copies
//   kWarpsN      warps along the rows of W, each with its own copy of x
//   kWarpsK      warps along K
//   kStages      steps in shared memory: the current one and those in flight
//   kBlocks      blocks on a multiprocessor, which bounds the registers
template <int kTokens_, int kRowBlocks_, int kWarpsN_, int kWarpsK_, int kStages_, int kBlocks_>
struct FlatShape {
  static constexpr int kTokens = kTokens_, kRowBlocks = kRowBlocks_, kStages = kStages_;
  static constexpr int kWarpsN = kWarpsN_, kWarpsK = kWarpsK_, kBlocks = kBlocks_;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  static constexpr int kWarpRows = 16 * kRowBlocks, kRows = kWarpRows * kWarpsN;
  static constexpr int kOctets = kTokens / 8;                     // of tokens
  static constexpr int kRoundOctets = kOctets < 2 ? kOctets : 2;  // that are reduced at a time
  static constexpr uint32_t kLine = kFlatStepCols * sizeof(uint16_t);
  static constexpr uint32_t kStageBytes = (kWarpRows + kTokens) * kLine;
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes;
  static constexpr uint32_t kSumBytes = kWarpsK * kRoundOctets * 8 * kRows * sizeof(float);
  static constexpr uint32_t kSharedBytes =
      kWarpsN * kWarpsK * kWarpBytes;  // reused for sums and a flag
  static_assert(kLine == 128 && kTokens % 8 == 0);
  static_assert(kSumBytes + sizeof(uint32_t) <= kSharedBytes);
  static_assert(kRows % 32 == 0, "for the swizzle of the sums");
};

// Offset of a 16-byte chunk in a warp's stage. Chunks are swizzled by the row, so that the eight
// rows of an ldmatrix lie in different banks.
__device__ __forceinline__ uint32_t line_place(int row, int chunk) {
  return row * 128 + (chunk ^ row % 8) * 16;
}

// Sums of a round are stored as [token][row]. Rows are swizzled so that both the stores (rows lane
// / 4 and lane / 4 + 8 of two tokens a lane) and the loads (four rows of one token a lane) spread
// over the banks.
template <class Shape>
__device__ __forceinline__ uint32_t sum_place(int token, int row) {
  return (token * Shape::kRows + (row ^ token / 2 % 4 * 8)) * sizeof(float);
}

// A block: kRows rows of W by a part of its columns.
template <class Type, class Shape, bool kAligned>
class FlatBlock {
 public:
  __device__ __forceinline__ FlatBlock(const FlatArguments& a, uint32_t shared)
      : a_(a.dense),
        partials_(a.partials),
        arrivals_(a.arrivals),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_n_(warp_of_block() % Shape::kWarpsN),
        warp_k_(warp_of_block() / Shape::kWarpsN),
        ring_(keep(shared + warp_of_block() * Shape::kWarpBytes)) {}

  __device__ __forceinline__ void run() {
    const uint32_t steps = (a_.cols + kFlatStepCols - 1) / kFlatStepCols;
    const int begin = steps * blockIdx.y / gridDim.y;
    const int end = steps * (blockIdx.y + 1) / gridDim.y;
    const int first = begin + warp_k_;
    multiply_steps(first, end > first ? (end - first - 1) / Shape::kWarpsK + 1 : 0);
    add_warps();
    if (gridDim.y > 1) add_blocks();
  }

 private:
  static constexpr int kStride = Shape::kWarpsK * kFlatStepCols;  // columns to a warp's next step
  static constexpr int kQuads = Shape::kRows / 4;
  static constexpr int kCopiedRows = 4;  // that a warp copies at once: 8 chunks of each
  static constexpr int kCopies = Shape::kWarpRows / kCopiedRows, kXCopies = Shape::kTokens / 4;
  static constexpr uint32_t kX = Shape::kWarpRows * Shape::kLine;  // offset of x in a stage

  // ---- multiplying ----------------------------------------------------------------------------

  // Steps first, first + kWarpsK, ...: `count` of them.
  __device__ __forceinline__ void multiply_steps(int first, int count) {
    constexpr int kAhead = Shape::kStages - 1;
    constexpr uint32_t kLastStage = kAhead * Shape::kStageBytes;
    begin_copies(first);
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) start_step(i * Shape::kStageBytes, i < count);
    uint32_t stage = 0;
    FS_NO_UNROLL
    for (int left = count; left > 0; --left) {
      copy_async_wait<kAhead - 1>();
      __syncwarp();  // this step has arrived, and the previous one has been read
      start_step(stage == 0 ? kLastStage : stage - Shape::kStageBytes, left > kAhead);
      multiply(ring_ + stage);
      stage = stage == kLastStage ? 0 : stage + Shape::kStageBytes;
    }
  }

  // A lane copies chunk lane % 8 of rows lane / 8, 4 + lane / 8, ...
  __device__ __forceinline__ void begin_copies(int first) {
    const int row = lane_ / 8, chunk = lane_ % 8;
    column_ = first * kFlatStepCols + chunk * kChunk;
    FS_UNROLL
    for (int i = 0; i < 2; ++i) to_[i] = keep(ring_ + line_place(row + i * kCopiedRows, chunk));
    const int64_t first_row = static_cast<int64_t>(blockIdx.x) * Shape::kRows;
    weight_ = a_.weight + first_row * a_.weight_stride;
    FS_UNROLL
    for (int i = 0; i < kCopies; ++i) {  // past the last row, that one is copied again
      const int wanted = warp_n_ * Shape::kWarpRows + i * kCopiedRows + row;
      rows_[i] = min(wanted, static_cast<int>(a_.rows - 1 - first_row)) * a_.weight_stride;
    }
  }

  // Starts to copy the next step to this stage, if it exists. Always commits a group.
  __device__ __forceinline__ void start_step(uint32_t stage, bool there) {
    if (there) {
      const bool inside = column_ < a_.cols;  // K may end inside of a step
      FS_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        const uint32_t to = to_[i % 2] + stage + i / 2 * 2 * kCopiedRows * Shape::kLine;
        const uint16_t* const from = weight_ + (rows_[i] + column_);
        if constexpr (kAligned) {
          copy_async<16>(to, from, inside);
        } else {
          store_shared(to, load_elements(from, column_, a_.cols));
        }
      }
      FS_UNROLL
      for (int i = 0; i < kXCopies; ++i) {
        const uint32_t to = to_[i % 2] + stage + kX + i / 2 * 2 * kCopiedRows * Shape::kLine;
        const int token = i * kCopiedRows + lane_ / 8;
        copy_async<16>(to, a_.x + (token * a_.x_stride + column_), inside && token < a_.tokens);
      }
      column_ += kStride;
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void multiply(uint32_t stage) {
    const int row = lane_ % 16, half = lane_ / 16, token = lane_ % 8, quarter = lane_ / 8;
    FS_UNROLL
    for (int pair = 0; pair < kFlatStepCols / 32; ++pair) {
      uint32_t x[Shape::kOctets][4];  // of each octet, for two mma
      FS_UNROLL
      for (int t = 0; t < Shape::kOctets; ++t) {
        ldmatrix_x4(x[t],
                    stage + kX + t * 8 * Shape::kLine + line_place(token, 4 * pair + quarter));
      }
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        FS_UNROLL
        for (int r = 0; r < Shape::kRowBlocks; ++r) {
          uint32_t w[4];
          ldmatrix_x4(w, stage + r * 16 * Shape::kLine + line_place(row, 4 * pair + 2 * i + half));
          FS_UNROLL
          for (int t = 0; t < Shape::kOctets; ++t) {
            mma_m16n8k16<Type>(sums_[r][t], w, x[t][2 * i], x[t][2 * i + 1]);
          }
        }
      }
    }
  }

  // ---- adding up ------------------------------------------------------------------------------

  // Adds up the partial sums of the warps along K, in their order: to y, or to the block's
  // `partials`.
  __device__ __forceinline__ void add_warps() {
    constexpr int kTokens = 8 * Shape::kRoundOctets;
    constexpr uint32_t kWarpSums = kTokens * Shape::kRows * sizeof(float);
    FS_UNROLL
    for (int first = 0; first < Shape::kOctets; first += Shape::kRoundOctets) {
      __syncthreads();  // every warp has read the steps, or sums, that are overwritten
      FS_UNROLL
      for (int t = 0; t < Shape::kRoundOctets; ++t) {
        FS_UNROLL
        for (int r = 0; r < Shape::kRowBlocks; ++r) {
          FS_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int row = warp_n_ * Shape::kWarpRows + 16 * r + i / 2 * 8 + lane_ / 4;
            const int token = 8 * t + lane_ % 4 * 2 + i % 2;
            store_shared(shared_ + warp_k_ * kWarpSums + sum_place<Shape>(token, row),
                         sums_[r][first + t][i]);
          }
        }
      }
      __syncthreads();
      const int tokens = min(a_.tokens - 8 * first, kTokens);
      FS_NO_UNROLL
      for (int i = threadIdx.x; i < tokens * kQuads; i += Shape::kThreads) {
        const uint32_t place = shared_ + sum_place<Shape>(i / kQuads, i % kQuads * 4);
        float4 sum = load_shared<float4>(place);
        FS_UNROLL
        for (int k = 1; k < Shape::kWarpsK; ++k) {
          sum = add(sum, load_shared<float4>(place + k * kWarpSums));
        }
        const int quad = 8 * first * kQuads + i;
        if (gridDim.y == 1) {
          store(quad, sum);
        } else {
          store_global(partials(blockIdx.y) + quad, sum);
        }
      }
    }
  }

  // The last to arrive of the blocks that share rows adds up the partial sums of all.
  __device__ __forceinline__ void add_blocks() {
    if (!last_block(arrivals_ + blockIdx.x, gridDim.y - 1, shared_ + Shape::kSumBytes)) return;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < a_.tokens * kQuads; quad += Shape::kThreads) {
      store(quad,
            sum_in_order(gridDim.y, [&](int block) { return load_l2(partials(block) + quad); }));
    }
  }

  __device__ __forceinline__ float4* partials(int part) const {
    const int64_t slot = int64_t{blockIdx.x} * gridDim.y + part;
    return reinterpret_cast<float4*>(partials_) + slot * (Shape::kTokens * kQuads);
  }

  // Sums are numbered by quads, four rows of a token.
  __device__ __forceinline__ void store(int quad, const float4& sum) const {
    const int row = blockIdx.x * Shape::kRows + quad % kQuads * 4;
    store_y<Type>(a_.y, a_.bias, a_.rows, quad / kQuads, row, sum);
  }

  const Arguments& a_;
  float* const partials_;
  uint32_t* const arrivals_;
  const uint32_t shared_;
  const int lane_, warp_n_, warp_k_;
  const uint32_t ring_;  // of the warp

  // What this lane copies next, and where to.
  const uint16_t* weight_;  // of the block's first row
  int rows_[kCopies];       // offsets in elements from there
  int column_;
  uint32_t to_[2];  // in the ring's first stage, of even and of odd copies

  float sums_[Shape::kRowBlocks][Shape::kOctets][4] = {};
};

// Launch with ceil(rows / Shape::kRows) x split blocks of Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory. kAligned needs 16-byte aligned rows of the weight,
// and cols a multiple of 8.
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
// Indexed like kFlatShapes.
inline const CompiledFlat kCompiledFlat[] = {
    FS_FLAT_SHAPES(FS_COMPILED) compiled_flat<false, FlatShape<FS_UNALIGNED_FLAT_SHAPE>>()};
#undef FS_COMPILED

}  // namespace flashsparse::dense
