// SPDX-License-Identifier: Apache-2.0
// Expands a lane's stored values from shared memory to operand A of wgmma.
//
// A lane reads its run from its column, two items a word. Four weights need up to four items, which
// span three words; funnel shifts align the first item. A second copy of the values, shifted by one
// item, would save instructions but take two wavefronts a line to make, and twice the shared
// memory.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// Lines past the end of a unit that lanes may read, without using what they hold.
inline constexpr int kLinesReadBeyond = 3;

class LaneItems {
 public:
  // Moves to the beginning of a run: `start` as stored in the unit, `values` the shared address of
  // the value lines, a multiple of 128.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = start % kLineWords * 4;
    place_ = values + start / kLineWords * kItem;
    half_ = start / kLineWords * 16;
  }

  // Produces A of 16 rows x 16 columns: step 0 to 3 of a panel of 64 columns, whose mask word of
  // this lane is `mask`.
  template <int step>
  __device__ __forceinline__ void expand(uint32_t mask, uint32_t (&a)[4]) {
    constexpr int kFirst = 2 * step, kSecond = 2 * step + 1;  // bits of each byte
    four<kFirst % 3>(mask >> kFirst / 3 * 3, a[0], a[1]);
    four<kSecond % 3>(mask >> kSecond / 3 * 3, a[2], a[3]);
  }

 private:
  // Distance of two items in place_: half a line, so that its upper bits select the line.
  static constexpr uint32_t kItem = kLineBytes / 2;

  __device__ __forceinline__ uint32_t address() const {
    return (place_ & ~uint32_t{kLineBytes - 1}) | column_;
  }

  // Expands two adjacent weights of the upper row and two of the lower row; bit `bit` of the mask's
  // four bytes tells which are nonzero.
  template <int bit>
  __device__ __forceinline__ void four(uint32_t mask, uint32_t& upper, uint32_t& lower) {
    // Selectors of two items, or of zeros: 0x4444 plus these terms for the first and the second
    // bit.
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
  uint32_t half_;  // bit offset of the item in its word, modulo 32
};

}  // namespace flashsparse::tiled_bitmap
