// SPDX-License-Identifier: Apache-2.0
// From a unit in shared memory to operands of the tensor cores: a lane walks down its column of
// items, four weights at a time, of which some are kept.
//
// Two weights of a row need up to two items that follow each other, in one register. Between two
// fours the lane is at some item of its column: the two before it are those of the lower row of the
// four that it has passed, and the two from it on those of the upper row of the next. One byte
// permutation takes items to their weights' places, and zero to the others; its selector, and how
// far the lane comes, are dot products of bytes that are 0 or a power of two.
//
// RingItems finds the pairs in the unit as it lies in memory: the four items lie in three words,
// one below the other, and either pair is a funnel shift of two of them by the same number of bits.
// SpreadItems (spread_items.cuh) has all pairs ready: fewer instructions and more turns of shared
// memory.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// Where a lane is in its column.
class RingItems {
 public:
  // `start` as the unit has it, `values` where its lines begin.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = keep(values + start % kLineWords * 4);
    place_ = start / kLineWords * kItem;
    half_ = start / kLineWords * 16;
  }
  // The two items from here on.
  __device__ __forceinline__ uint32_t next() const {
    const uint32_t from = address();
    return pair(load_shared<uint32_t>(from), load_shared<uint32_t>(from + kLineBytes));
  }
  // Past what is kept of four weights: bits `bit` of the bytes. The two items before that place,
  // and those from there on, unless it is the last.
  template <int bit, bool is_last>
  __device__ __forceinline__ void pass(uint32_t kept, uint32_t& before, uint32_t& next) {
    place_ = dp4a(kept, (kItem >> bit) * 0x01010101, place_);
    half_ = dp4a(kept, (16u >> bit) * 0x01010101, half_);
    const uint32_t from = address(), above = load_shared<uint32_t>(from - kLineBytes);
    const uint32_t here = load_shared<uint32_t>(from);
    before = pair(above, here);
    if constexpr (!is_last) next = pair(here, load_shared<uint32_t>(from + kLineBytes));
  }

 private:
  // Two items are a line: byte 1 of place_.
  static constexpr uint32_t kItem = 0x80;

  __device__ __forceinline__ uint32_t address() const {
    return dp4a(place_, kLineBytes << 8, column_);
  }
  __device__ __forceinline__ uint32_t pair(uint32_t above, uint32_t below) const {
    return funnel_right(above, below, half_);
  }

  uint32_t column_;  // where it begins
  uint32_t place_;   // the next item
  uint32_t half_;    // modulo 32, where in its word it begins: bits
};

// A run of a lane.
template <class Items>
class KeptValues {
 public:
  // Goes to the beginning of a run, as Items has it.
  __device__ __forceinline__ void begin(uint32_t items, uint32_t start) {
    items_.begin(items, start);
  }
  // Before the first of `next`, when the items are there.
  __device__ __forceinline__ void load() { next_ = items_.next(); }

  // The A operands of two mma m16n8k16, of 32 columns: bits 4 part to 4 part + 3 of a mask's bytes.
  // `is_last`: the run ends with these.
  template <int part, bool is_last>
  __device__ __forceinline__ void next(uint32_t mask, uint32_t (&a)[2][4]) {
    const uint32_t first = mask >> 4 * part, second = mask >> (4 * part + 2);
    next_four<0, false>(first, a[0][0], a[0][1]);
    next_four<1, false>(first, a[0][2], a[0][3]);
    next_four<0, false>(second, a[1][0], a[1][1]);
    next_four<1, is_last>(second, a[1][2], a[1][3]);
  }

 private:
  // The four weights of the bits q, q + 8, q + 16 and q + 24 of a mask: two words of an operand.
  template <int q, bool is_last>
  __device__ __forceinline__ void next_four(uint32_t mask, uint32_t& upper, uint32_t& lower) {
    // Of the upper row, whose first item is the lower half of the pair: neither 0x4444 (zero), the
    // first alone 0x6610, the second alone 0x1044, both 0x3210. Of the lower row, whose last item
    // is the upper half: neither 0x4466, the first alone 0x4432, the second alone 0x3244, both
    // 0x3210.
    static_assert(q <= 1, "0x1222 has no more powers of two");
    constexpr uint32_t kUpper = 0x21cc >> q | (0x10000u - (0x3400 >> q)) << 16;
    constexpr uint32_t kLower = (0x10000u - (0x34 >> q)) | (0x10000u - (0x1222 >> q)) << 16;
    const uint32_t kept = mask & 0x01010101u << q;
    upper = prmt(next_, 0, dp2a_lo(kUpper, kept, 0x4444));
    uint32_t before;
    items_.template pass<q, is_last>(kept, before, next_);
    lower = prmt(before, 0, dp2a_hi(kLower, kept, 0x4466));
  }

  Items items_;
  uint32_t next_;  // the two items that come now
};

// The operands of a unit in memory, one item after the other: of 32 columns at a time. For units
// that there is no room for.
class SlowValues {
 public:
  __device__ __forceinline__ explicit SlowValues(const unsigned char* unit)
      : values_(reinterpret_cast<const uint16_t*>(unit + kHeadBytes)),
        masks_(reinterpret_cast<const uint32_t*>(unit) + threadIdx.x % 32 * kMaskWords),
        starts_(load_readonly(reinterpret_cast<const uint32_t*>(unit) + kMaskLines * kLineWords +
                              threadIdx.x % 32)) {}

  // Call it for 0 to 7.
  __device__ __forceinline__ void next(int columns, uint32_t (&a)[2][4]) {
    if (columns % 2 == 0) mask_ = load_readonly(masks_ + columns / 2);
    if (columns % 4 == 0) {
      const uint32_t start = columns == 0 ? starts_ & 0xffff : starts_ >> 16;
      column_ = start % kLineWords * 2;
      item_ = start / kLineWords;
    }
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      uint32_t two[2];
      FS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const uint32_t kept = mask_ >> (i / 2 + i % 2 * 16 + e * 8) & 1;
        const uint32_t at = item_ / 2 * (kLineWords * 2) + column_ + item_ % 2;
        two[e] = kept ? load_readonly(values_ + at) : 0;
        item_ += kept;
      }
      a[i / 4][i % 4] = two[0] | two[1] << 16;
    }
    mask_ >>= 4;
  }

 private:
  const uint16_t* const values_;
  const uint32_t* const masks_;
  const uint32_t starts_;
  uint32_t mask_ = 0, column_ = 0, item_ = 0;
};

}  // namespace flashsparse::tiled_bitmap
