// SPDX-License-Identifier: Apache-2.0
// From a unit of codes in shared memory to operands of the tensor cores: a lane walks down its
// column of bytes, four weights at a time, of which some are kept.
//
// The four bytes from any item on lie in two words of the column, one below the other; a funnel
// shift makes one of them. So the unit is read where the copy has put it. One byte permutation
// takes each kept byte to its weight's place, and the byte of code 0 to all others. Its selector is
// linear in the four bits: a place takes the byte 4 + (kept before it), of the word of zeros, or
// four less. What it is for a bit, shifted, is an operand of a dot product of bytes that are 0 or a
// power of two; so is how far the lane comes.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "common/widen.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// A run of a lane. `by_codes`: whether x is codes, too.
template <class Type, bool by_codes>
class KeptCodes {
 public:
  // Goes to the beginning of a run: `start` as the unit has it, `values` where its lines begin, a
  // multiple of 128.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = keep(start % kLineWords * 4);
    place_ = values / 4 + start / kLineWords * kItem;
  }

  // The A operands of two mma: of 32 columns for 16-bit x, bits 4 part to 4 part + 3 of a mask's
  // bytes; of 64 columns for codes of x, all of its bits.
  template <int part, bool>
  __device__ __forceinline__ void next(uint32_t mask, uint32_t (&a)[2][4]) {
    uint32_t four[4];
    next_fours<part>(mask, four);
    if constexpr (by_codes) {
      join(four, a[0]);
      next_fours<part + 1>(mask, four);
      join(four, a[1]);
    } else {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint32_t (&to)[4] = a[i / 2];
        widen_bytes<Type>(four[i], to[i % 2 * 2], to[i % 2 * 2 + 1]);
      }
    }
  }

 private:
  // Four items are a line of words: place_ modulo 32 is the shift, and the rest the line.
  static constexpr uint32_t kItem = kLineWords / 4;

  template <int half>
  __device__ __forceinline__ void next_fours(uint32_t mask, uint32_t (&four)[4]) {
    const uint32_t later = mask >> 3, last = mask >> 6;
    if constexpr (half == 0) {
      four[0] = next_four<0>(mask);
      four[1] = next_four<1>(mask);
      four[2] = next_four<2>(mask);
      four[3] = next_four<0>(later);
    } else {
      four[0] = next_four<1>(later);
      four[1] = next_four<2>(later);
      four[2] = next_four<0>(last);
      four[3] = next_four<1>(last);
    }
  }

  // The bytes of the weights of bits q, q + 8, q + 16 and q + 24 of a mask.
  template <int q>
  __device__ __forceinline__ uint32_t next_four(uint32_t mask) {
    constexpr uint32_t kLower = 0x110c >> q | 0x10c0 >> q << 16;
    constexpr uint32_t kUpper = 0x0c00 >> q | (0x10000u - (0x4000 >> q)) << 16;
    const uint32_t kept = mask & 0x01010101u << q;
    const uint32_t at = (place_ * 4 & ~(kLineBytes - 1u)) | column_;
    const uint32_t first = load_shared<uint32_t>(at);
    const uint32_t next = load_shared<uint32_t>(at + kLineBytes);
    const uint32_t items = funnel_right(first, next, place_);
    place_ = dp4a(kept, (kItem >> q) * 0x01010101, place_);
    return prmt(items, kCodeZero * 0x01010101u,
                dp2a_hi(kUpper, kept, dp2a_lo(kLower, kept, 0x4444)));
  }

  // Of four pairs of the upper row and of the lower one, 32 columns in the order in which x has
  // them (codes_of_x.cuh).
  static __device__ __forceinline__ void join(const uint32_t (&four)[4], uint32_t (&a)[4]) {
    FS_UNROLL
    for (int i = 0; i < 4; i += 2) {
      a[i] = prmt(four[i], four[i + 1], 0x5410);
      a[i + 1] = prmt(four[i], four[i + 1], 0x7632);
    }
  }

  uint32_t column_;  // in bytes of a line
  uint32_t place_;   // in words of shared memory
};

}  // namespace flashsparse::tiled_bitmap
