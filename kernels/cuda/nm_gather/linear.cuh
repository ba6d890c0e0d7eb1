// SPDX-License-Identifier: Apache-2.0
// y = x W^T for a vector-wise N:M weight, the decode kernel (few tokens): only kept columns are
// multiplied.
//
//   memory          shared memory                             registers
//   values, index   a ring for each warp: 3 to 12 pairs  -->  A of mma, and row addresses
//                   of steps in flight                             |
//   x               columns of 8 tokens, 16 bytes   --ldmatrix, one address a lane-->  B of mma
//
// ldmatrix takes the address of each of its rows from a lane: with x transposed, that *is* the
// gather, and costs no instruction. Quantized values are converted on their way to A. Scales of
// rows multiply the accumulators, scales of groups multiply A. Compute warps wait for memory at
// their rings only; four producer warps copy the next chunk of x meanwhile, with one barrier for
// each chunk.
#pragma once
#include "common/warp.cuh"
#include "cuda/nm_gather/add_sums.cuh"
#include "cuda/nm_gather/fragments.cuh"
#include "cuda/nm_gather/linear_shape.h"
#include "cuda/nm_gather/stage_x.cuh"
#include "cuda/nm_gather/weight_ring.cuh"

namespace flashsparse::nm_gather {

// Addresses of the rows of x, in a chunk, that kept columns select.
class GatherAddress {
 public:
  __device__ __forceinline__ GatherAddress(const Weight& weight, int lane)
      : panel_columns_(weight.panel_columns),
        per_step_((0xffff + weight.panel_steps) / weight.panel_steps),
        second_(lane / 16) {}

  // Moves to the chunk that begins with `section` and `pair`, and lies at `shared`.
  __device__ __forceinline__ void move(const Weight& weight, int section, int pair,
                                       uint32_t shared) {
    column_ = section * weight.section_columns;
    pair_ = pair;
    shared_ = shared - block_begin(column_) * 16;
  }

  // The address for the lane's entry in a pair of the chunk, by its index byte. The step is divided
  // by panel_steps <= 16, which is exact below 4096 steps.
  __device__ __forceinline__ uint32_t of(int pair, uint32_t byte) const {
    const int panel = static_cast<uint32_t>((pair - pair_) * 2 + second_) * per_step_ >> 16;
    return shared_ + (block_begin(column_ + panel * panel_columns_) + byte) * 16;
  }

 private:
  const int panel_columns_;
  const uint32_t per_step_;  // 65536 / panel_steps, rounded up
  const int second_;         // whether the lane's entry is in the second step of a pair
  int column_, pair_;        // first of the chunk
  uint32_t shared_;          // the address that column 0 would have
};

// The A operands of the next pair of steps.
template <class Type, class Shape>
__device__ __forceinline__ void operands(const WeightRing<Shape>& ring,
                                         uint32_t (&a)[2][Shape::kTiles][4]) {
  uint4 values[Shape::kVectors];
  FS_UNROLL
  for (int i = 0; i < Shape::kVectors; ++i) values[i] = ring.values(i);
  if constexpr (Shape::kUnitRows == 8) {  // rows 8 to 15 of A are empty
    const uint4 v = values[0];
    a[0][0][0] = v.x, a[0][0][2] = v.y, a[1][0][0] = v.z, a[1][0][2] = v.w;
    a[0][0][1] = a[0][0][3] = a[1][0][1] = a[1][0][3] = 0;
  } else {
    FS_UNROLL
    for (int i = 0; i < 2 * Shape::kTiles; ++i) {
      widen_fragment<Type, Shape::kValues>(values, i, a[i / Shape::kTiles][i % Shape::kTiles]);
    }
    if constexpr (scaled_by_group(Shape::kValues)) {
      const uint4 scales = ring.scales();
      scale_rows<Type>(scales.x, a[0][0]);
      scale_rows<Type>(scales.y, a[0][1]);
      scale_rows<Type>(scales.z, a[1][0]);
      scale_rows<Type>(scales.w, a[1][1]);
    }
  }
}

// Multiplies a pair of steps: sums += a times the rows of x at `address`, plane by plane.
template <class Type, class Shape>
__device__ __forceinline__ void multiply_pair(float (&sums)[Shape::kTiles][Shape::kPlanes][4],
                                              const uint32_t (&a)[2][Shape::kTiles][4],
                                              uint32_t address, uint32_t plane_bytes) {
  FS_UNROLL
  for (int plane = 0; plane < Shape::kPlanes; ++plane) {
    uint32_t x[4];
    ldmatrix_x4<true>(x, address + plane * plane_bytes);
    FS_UNROLL
    for (int step = 0; step < 2; ++step) {
      FS_UNROLL
      for (int tile = 0; tile < Shape::kTiles; ++tile) {
        mma_m16n8k16<Type>(sums[tile][plane], a[step][tile], x[step * 2], x[step * 2 + 1]);
      }
    }
  }
}

// A block. Compute and producer warps branch after the first chunk, so that registers are allocated
// for each of them apart, and meet at one barrier for each chunk.
template <class Type, class Shape>
class Block {
 public:
  __device__ __forceinline__ Block(const Weight& weight, const Arguments& a, uint32_t shared)
      : weight_(weight),
        a_(a),
        shared_(shared),
        begin_(a.by_splits(weight.sections * blockIdx.y)),
        end_(a.by_splits(weight.sections * (blockIdx.y + 1))) {}

  __device__ __forceinline__ void run() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int multiplying = a_.row_warps * a_.depth_warps;
    const int depth_warp = a_.by_row_warps(warp);
    const int unit = (blockIdx.x - depth_warp) * a_.row_warps + warp;
    const int pair = begin_ * weight_.section_pairs + depth_warp;
    const int pairs_end = unit < a_.units ? end_ * weight_.section_pairs : 0;
    WeightRing<Shape> ring(weight_, unit, pair, a_.depth_warps,
                           shared_ + a_.rings + warp * Shape::kRingBytes, lane);
    const int own = (pairs_end - pair + a_.depth_warps - 1) / a_.depth_warps;
    // Weights do not depend on the preceding kernel, which may write x, so they are requested
    // first. All else waits until it has ended: x, y, and the workspace, which it may use as well.
    // Half of the ring is enough to begin with; behind all of it x would be late.
    griddepcontrol_launch_dependents();
    if (warp < multiplying) ring.template fill<0, Shape::kStages / 2>(own);
    expect_scales();
    griddepcontrol_wait();
    stage_x<Shape, 2>(a_, first_column(begin_), shared_, threadIdx.x, blockDim.x);
    if (warp < multiplying) ring.template fill<Shape::kStages / 2, Shape::kStages>(own);
    wait_chunk();
    if (warp < multiplying) {
      multiply(ring, pair, pairs_end, warp, lane);
    } else {
      bring_x(threadIdx.x - multiplying * 32);
    }
    __syncthreads();
    const int row_block = blockIdx.x, row_blocks = gridDim.x;
    const int split = blockIdx.y, splits = gridDim.y;
    const SumsOfBlock sums{
        a_.y,    a_.bias,   weight_.row_scales, a_.x_scales,    a_.partials, a_.arrivals,
        a_.rows, a_.tokens, a_.row_warps,       a_.depth_warps, row_block,   row_blocks,
        split,   splits,    shared_ + a_.flag};
    AddSums<Type, Shape>(sums, shared_).run();
  }

 private:
  static constexpr uint32_t kPartBytes = Shape::kTokens * Shape::kSumStride * sizeof(float);

  // Warps w, w + row_warps, ... share the pairs of a unit of rows.
  __device__ __forceinline__ void multiply(WeightRing<Shape>& ring, int pair, int pairs_end,
                                           int warp, int lane) const {
    float sums[Shape::kTiles][Shape::kPlanes][4] = {};
    GatherAddress row(weight_, lane);
    uint32_t buffer = shared_, other = shared_ + buffer_bytes();
    FS_NO_UNROLL
    for (int section = begin_; section < end_; section += a_.chunk_sections) {
      const int chunk_end = min(section + a_.chunk_sections, end_) * weight_.section_pairs;
      row.move(weight_, section, section * weight_.section_pairs, buffer);
      FS_NO_UNROLL
      for (; pair < min(chunk_end, pairs_end); pair += a_.depth_warps) {
        ring.wait();
        uint32_t a[2][Shape::kTiles][4];
        operands<Type, Shape>(ring, a);
        multiply_pair<Type, Shape>(sums, a, row.of(pair, ring.byte()), plane_bytes());
        ring.refill(pair + Shape::kStages * a_.depth_warps < pairs_end);
      }
      wait_chunk();
      const uint32_t swapped = buffer;
      buffer = other;
      other = swapped;
    }
    // Rings and x have been read: accumulators overwrite them.
    store_sums<Shape>(sums, shared_ + warp * kPartBytes, lane);
  }

  // Copies the next chunk to the other buffer while one is multiplied.
  __device__ __forceinline__ void bring_x(int thread) const {
    uint32_t buffer = shared_ + buffer_bytes(), other = shared_;
    FS_NO_UNROLL
    for (int section = begin_; section < end_; section += a_.chunk_sections) {
      const int next = section + a_.chunk_sections;
      if (next < end_) {
        stage_x<Shape, 4>(a_, first_column(next), buffer, thread, kStagingWarps * 32);
      }
      wait_chunk();
      const uint32_t swapped = buffer;
      buffer = other;
      other = swapped;
    }
  }

  // Row scales and bias, which are needed at the end, begin their way from memory.
  __device__ __forceinline__ void expect_scales() const {
    const int own = a_.row_warps * Shape::kUnitRows, row = blockIdx.x * own + threadIdx.x;
    if (static_cast<int>(threadIdx.x) >= own || row >= a_.rows) return;
    if (scaled_by_row(Shape::kValues)) prefetch(weight_.row_scales + row);
    if (a_.bias) prefetch(a_.bias + row);
  }

  // A barrier of all threads of the block, called from both loops.
  __device__ __forceinline__ void wait_chunk() const { sync_threads_of(1, blockDim.x); }

  __device__ __forceinline__ int first_column(int section) const {
    return block_begin(section * weight_.section_columns);
  }
  __device__ __forceinline__ uint32_t plane_bytes() const { return a_.chunk_rows * 16; }
  __device__ __forceinline__ uint32_t buffer_bytes() const {
    return Shape::kPlanes * plane_bytes();
  }

  const Weight& weight_;
  const Arguments& a_;
  const uint32_t shared_;
  const int begin_, end_;  // sections
};

// Launch with gridDim.x = Plan::row_blocks(), gridDim.y = splits, Plan::threads() threads and
// Plan::shared_bytes() of dynamic shared memory.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Weight weight, const Arguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  Block<Type, Shape>(weight, arguments, shared_address(shared)).run();
}

struct Compiled {
  void (*float16)(Weight, Arguments);
  void (*bfloat16)(Weight, Arguments);
};

#define FS_NM_GATHER_COMPILED(...)                      \
  {linear_kernel<Float16, Shape<__VA_ARGS__, kValues>>, \
   linear_kernel<BFloat16, Shape<__VA_ARGS__, kValues>>},
// `shape`: index of kShapes, one for the bits of kValues.
template <ValueType kValues>
Compiled compiled(int shape) {
  const int index = shape - first_shape(bits_of(kValues));
  if constexpr (bits_of(kValues) == 16) {
    constexpr Compiled kernels[] = {FS_NM_GATHER_SHAPES(FS_NM_GATHER_COMPILED)};
    return kernels[index];
  } else if constexpr (bits_of(kValues) == 4) {
    constexpr Compiled kernels[] = {FS_NM_GATHER_SHAPES_4(FS_NM_GATHER_COMPILED)};
    return kernels[index];
  } else {
    constexpr Compiled kernels[] = {FS_NM_GATHER_SHAPES_8(FS_NM_GATHER_COMPILED)};
    return kernels[index];
  }
}
#undef FS_NM_GATHER_COMPILED

#ifdef __CUDACC__  // each in a source file of its own: instances.cmake
#define FS_EXTERN(name, ...) extern template Compiled compiled<ValueType::k##name>(int shape);
FS_EXTERN(Native)
FS_QUANTIZED_TYPES(FS_EXTERN)
#undef FS_EXTERN
#endif

inline Compiled compiled(int shape, ValueType values) {
  return with_type(values, [&](auto type) { return compiled<decltype(type)::value>(shape); });
}

// The arguments that follow from the plan.
inline void fill(const Layout& layout, int64_t rows, int64_t cols, const Plan& plan,
                 Arguments& arguments) {
  arguments.rows = static_cast<int>(rows);
  arguments.units = static_cast<int>(layout.units(rows));
  arguments.row_warps = plan.row_warps;
  arguments.by_row_warps = Divider(plan.row_warps);
  arguments.by_splits = Divider(plan.splits);
  arguments.depth_warps = plan.depth_warps;
  arguments.chunk_sections = plan.chunk_sections;
  arguments.chunk_rows = static_cast<int>(plan.chunk_rows(layout));
  arguments.per_quad = (kPerQuad + arguments.chunk_rows / 4 - 1) / (arguments.chunk_rows / 4);
  arguments.rings = static_cast<uint32_t>(plan.x_bytes(layout, cols));
  arguments.flag = static_cast<uint32_t>(plan.shared_bytes(layout, cols) - kFlagBytes);
}

}  // namespace flashsparse::nm_gather
