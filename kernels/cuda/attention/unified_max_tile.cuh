// SPDX-License-Identifier: Apache-2.0
// How a warp reads a tile of the cache from shared memory as operands of mma: keys as A of S = K
// Q^T (positions by elements of the head), values as A of O^T = V^T P (elements by positions). A
// tile of 16-bit elements and one of fp8 codes have the same functions.
//
// With codes ldmatrix moves pairs of codes as if they were one element of 16 bits, so a lane finds
// four codes in the place of two elements. The product does not depend on the order of the head's
// elements, if the query's is the same: in each 16 of them B's rows 2i, 2i + 1, 2i + 8 and 2i + 9
// are elements 4i to 4i + 3, and rows i and i + 8 of O^T are elements 2i and 2i + 1.
#pragma once
#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/registers.cuh"
#include "common/widen.cuh"
#include "cuda/attention/unified_max_load.cuh"
#include "cuda/attention/unified_max_plan.h"

namespace flashsparse::unified_max {

// In the dtype of the query.
template <class Dtype, int kDim>
class NativeTile {
 public:
  using Type = Dtype;
  static constexpr int kHeadDim = kDim, kElementBytes = 2;
  static constexpr int kRead = 1;  // steps of 16 elements of the head that are read at once

  __device__ __forceinline__ void begin(uint32_t ring, int lane) {
    FS_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      keys_[i] = keep(ring + Order::place(lane % 16, 2 * i + lane / 16));
      values_[i] =
          keep(ring + kValues + Order::place(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
    }
  }

  // The operands of steps k, k + 1, ... of the tile in this slot of the ring.
  __device__ __forceinline__ void keys(uint32_t slot, int k, uint32_t (&to)[kRead][4]) const {
    ldmatrix_x4(to[0], at_step(keys_, k) + slot);
  }
  __device__ __forceinline__ void values(uint32_t slot, int k, uint32_t (&to)[kRead][4]) const {
    ldmatrix_x4<true>(to[0], at_step(values_, k) + slot);
  }

  // The first of the lane's two elements in register i of B, in a step.
  static __device__ __forceinline__ int query_element(int lane, int i) {
    return lane % 4 * 2 + i * 8;
  }

  // Stores rows lane / 4 and lane / 4 + 8 of a step's 16 sums of a head, from this place in them
  // on.
  static __device__ __forceinline__ uint32_t sums_place(int lane) {
    return lane / 4 * uint32_t{sizeof(float)};
  }
  static __device__ __forceinline__ void store_sums(uint32_t to, float low, float high) {
    store_shared(to, low);
    store_shared(to + 32, high);
  }

 private:
  static constexpr uint32_t kRowBytes = row_bytes(kDim, kElementBytes);
  static constexpr uint32_t kValues = kTile * kRowBytes;
  using Order = TileOrder<kRowBytes>;
  // After kPlaces steps along the head, a lane's address is kPlaces * 32 bytes further on.
  static constexpr int kPlaces = Order::kSwizzled / 2;

  static __device__ __forceinline__ uint32_t at_step(const uint32_t (&places)[kPlaces], int k) {
    return places[k % kPlaces] + k / kPlaces * kPlaces * 32;
  }

  uint32_t keys_[kPlaces], values_[kPlaces];  // addresses in the ring's first slot
};

// e4m3 codes, widened in registers.
template <class Dtype, int kDim>
class Fp8Tile {
 public:
  using Type = Dtype;
  static constexpr int kHeadDim = kDim, kElementBytes = 1;
  static constexpr int kRead = 2;

  __device__ __forceinline__ void begin(uint32_t ring, int lane) {
    FS_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      places_[i] = keep(ring + Order::place(lane % 16, 2 * i + lane / 16));
    }
    second_ = lane / 16 * 16;
  }

  __device__ __forceinline__ void keys(uint32_t slot, int k, uint32_t (&to)[kRead][4]) const {
    uint32_t codes[4];
    ldmatrix_x4(codes, at_step(k) + slot);
    FS_UNROLL
    for (int s = 0; s < kRead; ++s) {
      widen_fp8<Dtype>(codes[2 * s], to[s][0], to[s][2]);
      widen_fp8<Dtype>(codes[2 * s + 1], to[s][1], to[s][3]);
    }
  }
  __device__ __forceinline__ void values(uint32_t slot, int k, uint32_t (&to)[kRead][4]) const {
    uint32_t codes[4];
    ldmatrix_x4<true>(codes, at_step(k) + kValues + slot);
    FS_UNROLL
    for (int s = 0; s < kRead; ++s) {
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {  // of positions; codes of one element go together
        const uint32_t pairs = prmt(codes[2 * s + half], 0, 0x3120);
        widen_fp8<Dtype>(pairs, to[s][2 * half], to[s][2 * half + 1]);
      }
    }
  }

  static __device__ __forceinline__ int query_element(int lane, int i) {
    return lane % 4 * 4 + i * 2;
  }

  static __device__ __forceinline__ uint32_t sums_place(int lane) {
    return lane / 4 * uint32_t{sizeof(float2)};
  }
  static __device__ __forceinline__ void store_sums(uint32_t to, float low, float high) {
    store_shared(to, make_float2(low, high));
  }

 private:
  static constexpr uint32_t kRowBytes = row_bytes(kDim, kElementBytes);
  static constexpr uint32_t kValues = kTile * kRowBytes;
  using Order = TileOrder<kRowBytes>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kPlaces = Order::kSwizzled > 1 ? Order::kSwizzled / 2 : 1;
  static_assert(kSteps % 2 == 0 || Order::kSwizzled == 1);

  // Of a last step without a second one all lanes read the first.
  __device__ __forceinline__ uint32_t at_step(int k) const {
    const int i = k / kRead;
    const uint32_t place = places_[i % kPlaces] + i / kPlaces * kPlaces * 32;
    return k + 1 < kSteps ? place : place - second_;
  }

  uint32_t places_[kPlaces], second_;
};

}  // namespace flashsparse::unified_max
