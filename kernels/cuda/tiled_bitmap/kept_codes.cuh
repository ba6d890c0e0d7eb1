// SPDX-License-Identifier: Apache-2.0
// Decodes a unit of int8 values from shared memory into A operands: a lane walks down its column of
// stored bytes, four weights at a time, some of which are nonzero.
//
// The next four bytes of a column span two words, one line apart; a funnel shift joins them, so the
// unit is read where the copy has put it. One byte permutation moves each stored byte to the
// position of its weight and fills the other positions with kCodeZero. Its selector is linear in
// the four mask bits: a position takes byte 4 + (nonzeros before it), which is of the word of
// zeros, or, where its weight is nonzero, 4 less. The terms of the bits are constants of a dp2a
// with mask bytes that are 0 or a power of two; the number of bytes to advance is a dp4a of the
// same kind.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "common/widen.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// A lane's run of stored values. `by_codes`: x is int8 too, so A stays int8.
template <class Type, bool by_codes>
class KeptCodes {
 public:
  // Moves to the beginning of a run: `start` as stored in the unit, `values` the shared address of
  // its value lines, a multiple of 128.
  __device__ __forceinline__ void begin(uint32_t values, uint32_t start) {
    column_ = keep(start % kLineWords * 4);
    place_ = values / 4 + start / kLineWords * kItem;
  }

  // Produces A of wgmma from a mask word of this lane, which is for 64 columns: a quarter of them
  // for 16-bit x, `part` 0 to 3; half of them, as signed bytes, for int8 x, `part` 0 or 1.
  template <int part>
  __device__ __forceinline__ void expand(uint32_t mask, uint32_t (&a)[4]) {
    if constexpr (by_codes) {
      uint32_t four[4];
      next_fours<part>(mask, four);
      join(four, a);
      FS_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = keep(a[i] ^ kCodeZero * 0x01010101u);
    } else {
      constexpr int kFirst = 2 * part, kSecond = 2 * part + 1;  // bits of each byte
      widen_bytes<Type>(next_four<kFirst % 3>(mask >> kFirst / 3 * 3), a[0], a[1]);
      widen_bytes<Type>(next_four<kSecond % 3>(mask >> kSecond / 3 * 3), a[2], a[3]);
    }
  }

  // Produces the A operands of two mma. 16-bit x: 32 columns, bits 4 part to 4 part + 3 of each
  // mask byte. Int8 x: 64 columns, all bits.
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
  // Four items fill one word of a line: place_ modulo 32 is the funnel shift, the rest selects the
  // line.
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

  // Expands the weights of mask bits q, q + 8, q + 16 and q + 24 to four bytes.
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

  // Joins four pairs of the upper row and four of the lower row to 32 columns, in the column order
  // of x (codes_of_x.cuh).
  static __device__ __forceinline__ void join(const uint32_t (&four)[4], uint32_t (&a)[4]) {
    FS_UNROLL
    for (int i = 0; i < 4; i += 2) {
      a[i] = prmt(four[i], four[i + 1], 0x5410);
      a[i + 1] = prmt(four[i], four[i + 1], 0x7632);
    }
  }

  uint32_t column_;  // byte offset of the lane's column in a line
  uint32_t place_;   // next item: address of its line in words; low 5 bits: bit offset
};

}  // namespace flashsparse::tiled_bitmap
