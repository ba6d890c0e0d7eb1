// SPDX-License-Identifier: Apache-2.0
// Decodes a unit of 16-bit values from shared memory into A operands: a lane walks down its column
// of items (stored nonzeros), four weights at a time, some of which are nonzero.
//
// The two weights of a row need up to two consecutive items, in one register. Between two groups of
// four weights a lane points at some item of its column: the two items before it belong to the
// lower row of the group just passed, the two from it on to the upper row of the next group. One
// byte permutation moves items to the positions of their weights and zero to the others. Its
// selector, and the number of items to advance, are dot products of mask bytes that are 0 or a
// power of two.
//
// RingItems reads pairs from the unit as it was copied: the four items span three words, one line
// apart, and either pair is a funnel shift of two of these words by the same number of bits.
// SpreadItems (spread_items.cuh) reads pairs that were prepared in advance: fewer instructions, but
// more shared-memory wavefronts.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// A lane's position in its column of a unit as it was copied.
class RingItems {
 public:
  // `start` as stored in the unit, `values` the shared address of its value lines.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = keep(values + start % kLineWords * 4);
    place_ = start / kLineWords * kItem;
    half_ = start / kLineWords * 16;
  }
  // The two items at the current position.
  __device__ __forceinline__ uint32_t next() const {
    const uint32_t from = address();
    return pair(load_shared<uint32_t>(from), load_shared<uint32_t>(from + kLineBytes));
  }
  // Advances past the nonzeros of four weights, which are bits `bit` of the bytes of `kept`.
  // Returns the two items before the new position and, unless this is the last group, the two from
  // it on.
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
  // place_ counts items by 0x80, so that its byte 1 is the line: two items a word.
  static constexpr uint32_t kItem = 0x80;

  __device__ __forceinline__ uint32_t address() const {
    return dp4a(place_, kLineBytes << 8, column_);
  }
  __device__ __forceinline__ uint32_t pair(uint32_t above, uint32_t below) const {
    return funnel_right(above, below, half_);
  }

  uint32_t column_;  // shared address of the column's first word
  uint32_t place_;   // the next item, times kItem
  uint32_t half_;    // bit offset of that item in its word, modulo 32
};

// A lane's run of stored values.
template <class Items>
class KeptValues {
 public:
  // Moves to the beginning of a run; parameters as of Items::begin.
  __device__ __forceinline__ void begin(uint32_t items, uint32_t start) {
    items_.begin(items, start);
  }
  // Loads the first pair. Call before the first next(), once the items have arrived.
  __device__ __forceinline__ void load() { next_ = items_.next(); }

  // Produces the A operands of two mma m16n8k16, 32 columns: bits 4 part to 4 part + 3 of each mask
  // byte. `is_last`: the run ends with these.
  template <int part, bool is_last>
  __device__ __forceinline__ void next(uint32_t mask, uint32_t (&a)[2][4]) {
    const uint32_t first = mask >> 4 * part, second = mask >> (4 * part + 2);
    next_four<0, false>(first, a[0][0], a[0][1]);
    next_four<1, false>(first, a[0][2], a[0][3]);
    next_four<0, false>(second, a[1][0], a[1][1]);
    next_four<1, is_last>(second, a[1][2], a[1][3]);
  }

 private:
  // Expands the weights of mask bits q, q + 8, q + 16 and q + 24 to two words of an operand.
  template <int q, bool is_last>
  __device__ __forceinline__ void next_four(uint32_t mask, uint32_t& upper, uint32_t& lower) {
    // Selectors of the upper row, whose first item is the lower half of the pair: no nonzero
    // 0x4444, only the first 0x6610, only the second 0x1044, both 0x3210. Of the lower row, whose
    // last item is the upper half: none 0x4466, only the first 0x4432, only the second 0x3244, both
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
  uint32_t next_;  // at the current position
};

// Slow path for units that exceed the ring: reads a unit item by item from global memory, and
// produces operands of 32 columns at a time.
class SlowValues {
 public:
  __device__ __forceinline__ explicit SlowValues(const unsigned char* unit)
      : values_(reinterpret_cast<const uint16_t*>(unit + kHeadBytes)),
        masks_(reinterpret_cast<const uint32_t*>(unit) + threadIdx.x % 32 * kMaskWords),
        starts_(load_readonly(reinterpret_cast<const uint32_t*>(unit) + kMaskLines * kLineWords +
                              threadIdx.x % 32)) {}

  // Call with columns = 0 to 7, in this order.
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
