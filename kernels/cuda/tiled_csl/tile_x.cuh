// SPDX-License-Identifier: Apache-2.0
// x in shared memory for a team: the columns of its current tile, and of the next one in flight.
#pragma once
#include "common/memory.cuh"
#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/linear_shape.h"

namespace flashsparse::linear {

// A token is a row of 128 bytes, 64 columns. Its 16-byte chunk c lies at c XOR (token mod 8): what
// wgmma calls "128-byte swizzle", and without bank conflicts for ldmatrix.
template <class Shape>
class TileX {
 public:
  // `shared`: two buffers of Shape::kXBytes.
  __device__ __forceinline__ TileX(const Arguments& a, uint32_t shared)
      : a_(a),
        token_(once(threadIdx.x % kThreads / 8)),
        place_(once(shared + token_ * 128 + (threadIdx.x % 8 ^ token_ % 8) * 16)),
        offset_(once(token_ * a.x_stride + threadIdx.x % 8 * 8)) {}

  // Starts the copies of x of the next tile, zero past the last token.
  __device__ __forceinline__ void load(int column) {
    buffer_ ^= 1;
    const uint32_t to = place_ + buffer_ * Shape::kXBytes;
    const uint16_t* const from = a_.x + (column * kTileCols + offset_);
    FS_UNROLL
    for (int i = 0; i < Shape::kTokens; i += kThreads / 8) {
      if (Shape::kTokens % (kThreads / 8) == 0 || token_ + i < Shape::kTokens) {
        const bool there = token_ + i < a_.tokens;
        copy_async<16>((to ^ i % 8 * 16) + i * 128, there ? from + i * a_.x_stride : a_.x, there);
      }
    }
    copy_async_commit();
  }

  // Waits for the copies of this thread. A team barrier makes them visible to the others.
  __device__ __forceinline__ void wait() { copy_async_wait<0>(); }

  // Offset from `shared` of the x that was loaded last.
  __device__ __forceinline__ uint32_t offset() const { return buffer_ * Shape::kXBytes; }

 private:
  static constexpr int kThreads = 32 * Shape::kTeamWarps;

  // Returns `value` in a way that the compiler does not see through, so that it stays in a register
  // instead of being recomputed for every tile.
  template <class T>
  static __device__ __forceinline__ T once(T value) {
    return __shfl_sync(~0u, value, threadIdx.x % 32);
  }

  const Arguments& a_;
  const int token_;  // this thread copies x of this token, and of every kThreads / 8th after it,
  const uint32_t place_;  // to this place in shared memory,
  const int offset_;      // from this element of a tile's columns
  uint32_t buffer_ = 0;   // buffer that was loaded last
};

}  // namespace flashsparse::linear
