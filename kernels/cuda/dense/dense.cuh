// SPDX-License-Identifier: Apache-2.0
// Shared by the kernels of dense layers: their arguments, and how they read a weight.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"

namespace flashsparse::dense {

struct Arguments {
  const uint16_t* x;       // [tokens, cols], rows `x_stride` elements apart and 16-byte aligned,
  int x_stride;            // zero from cols up to a multiple of 8
  const uint16_t* weight;  // [rows, cols], rows `weight_stride` elements apart
  int weight_stride;
  const uint16_t* bias;  // [rows], or null
  uint16_t* y;           // [tokens, rows]
  int rows, cols, tokens;
};

// Call is cuda::DenseCall (dense.h), which needs the CUDA headers.
template <class Call>
Arguments arguments_of(const Call& call) {
  return {call.x,
          static_cast<int>(call.x_stride),
          call.weight,
          static_cast<int>(call.weight_stride),
          call.bias,
          call.y,
          static_cast<int>(call.rows),
          static_cast<int>(call.cols),
          static_cast<int>(call.tokens)};
}

inline constexpr int kChunk = 8;  // elements of a 16-byte load

// Loads eight elements of a row; zero from column cols on.
__device__ __forceinline__ uint4 load_elements(const uint16_t* place, int column, int cols) {
  uint32_t bits[kChunk];
  FS_UNROLL
  for (int i = 0; i < kChunk; ++i) bits[i] = column + i < cols ? load_readonly(place + i) : 0;
  return make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                    bits[6] | bits[7] << 16);
}

// Starts to copy eight elements of a row to shared memory; only this thread will read them (see
// Ring).
template <bool kAligned>
__device__ __forceinline__ void start_chunk(uint32_t to, const uint16_t* place, int column,
                                            int cols) {
  if constexpr (kAligned) {
    copy_async<16>(to, place, true);
  } else {
    store_shared(to, load_elements(place, column, cols));
  }
}

// Weights in flight: the next kStages - 1 steps of a warp, of kRows chunks for each lane. They are
// staged in shared memory, but every lane reads only what it has copied, so that no thread waits
// for another. Unlike loads to registers, these cannot be delayed by the compiler until they are
// used.
template <int kRows, int kStages>
class Ring {
 public:
  static constexpr int kWarpBytes = kStages * kRows * 32 * 16;

  // `shared`: kWarpBytes for each warp of the block.
  __device__ __forceinline__ Ring(uint32_t shared, int warp)
      : first_(shared + warp * kWarpBytes + threadIdx.x % 32 * 16), now_(first_), free_(first_) {}

  // Address to which a chunk of the next step is copied.
  __device__ __forceinline__ uint32_t to(int row) const { return free_ + row * kRowBytes; }
  // Commits a step's copies; there may be none.
  __device__ __forceinline__ void commit() {
    copy_async_commit();
    free_ = after(free_);
  }
  // Waits for the copies of the oldest step.
  __device__ __forceinline__ void wait() const { copy_async_wait<kStages - 1>(); }
  __device__ __forceinline__ uint4 chunk(int row) const {
    return load_shared<uint4>(now_ + row * kRowBytes);
  }
  // Releases the oldest step's stage.
  __device__ __forceinline__ void advance() { now_ = after(now_); }

 private:
  static constexpr uint32_t kRowBytes = 32 * 16, kStageBytes = kRows * kRowBytes;

  __device__ __forceinline__ uint32_t after(uint32_t stage) const {
    return stage == first_ + (kStages - 1) * kStageBytes ? first_ : stage + kStageBytes;
  }

  const uint32_t first_;
  uint32_t now_, free_;
};

// Shuffled from lane 0, so that the compiler knows it to be uniform in a warp.
__device__ __forceinline__ int warp_of_block() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
}

}  // namespace flashsparse::dense
