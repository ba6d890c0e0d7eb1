// SPDX-License-Identifier: Apache-2.0
// What a lane has kept of its weights, on the way from shared memory to operand A.
//
// A lane reads its run from its column, two items a word. Of four weights it needs up to four
// items, which lie in three words, and funnel shifts put the first item first. A second copy of the
// values, shifted by one item, would need fewer instructions, but two turns a line to make it, and
// shared memory twice.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// Lines behind those of a unit that lanes may read, and make no use of.
inline constexpr int kLinesReadBeyond = 3;

class LaneItems {
 public:
  // Goes to the beginning of a run: `start` as the unit has it, `values` the shared address of the
  // value lines, a multiple of 128.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = start % kLineWords * 4;
    place_ = values + start / kLineWords * kItem;
    half_ = start / kLineWords * 16;
  }

  // A of 16 rows x 16 columns, the next ones of 64: `step` in 0..3, `mask` the lane's of the 64.
  template <int step>
  __device__ __forceinline__ void expand(uint32_t mask, uint32_t (&a)[4]) {
    constexpr int kFirst = 2 * step, kSecond = 2 * step + 1;  // bits of each byte
    four<kFirst % 3>(mask >> kFirst / 3 * 3, a[0], a[1]);
    four<kSecond % 3>(mask >> kSecond / 3 * 3, a[2], a[3]);
  }

 private:
  // From an item to the next in place_: half a line, so that the line is that of its word.
  static constexpr uint32_t kItem = kLineBytes / 2;

  __device__ __forceinline__ uint32_t address() const {
    return (place_ & ~uint32_t{kLineBytes - 1}) | column_;
  }

  // Two neighbours of the upper row and two of the lower one, which are kept where the bits `bit`
  // of the mask's four bytes are 1.
  template <int bit>
  __device__ __forceinline__ void four(uint32_t mask, uint32_t& upper, uint32_t& lower) {
    // Selectors of two items, or of zero: 0x4444 plus these for the first and for the second bit.
    constexpr uint32_t kZeros = 0x4444, kFirst = 0x21cc >> bit;
    constexpr uint32_t kSecond = static_cast<uint16_t>(-(0x3400 >> bit));
    constexpr uint32_t kSelect = kFirst | kSecond << 16;
    const uint32_t kept = mask & (0x01010101u << bit), from = address();
    const uint32_t first = load_shared<uint32_t>(from);
    const uint32_t next = load_shared<uint32_t>(from + kLineBytes);
    const uint32_t last = load_shared<uint32_t>(from + 2 * kLineBytes);
    const uint32_t one = funnel_right(first, next, half_), two = funnel_right(next, last, half_);
    const uint32_t third = funnel_right_clamped(one, two, dp2a_lo(0x00100010u >> bit, kept, 0));
    upper = prmt(one, 0, dp2a_lo(kSelect, kept, kZeros));
    lower = prmt(third, 0, dp2a_hi(kSelect, kept, kZeros));
    place_ = dp4a(kept, (kItem >> bit) * 0x01010101u, place_);
    half_ = dp4a(kept, (16u >> bit) * 0x01010101u, half_);
  }

  uint32_t column_, place_;
  uint32_t half_;  // modulo 32, where in the word the item begins: bits
};

}  // namespace flashsparse::tiled_bitmap
