// SPDX-License-Identifier: Apache-2.0
// From a unit in shared memory to operands of the tensor cores: a lane walks down its column of
// items, four weights at a time, of which some are kept.
//
// Two weights need two items that follow each other, in one register. Items 2 r and 2 r + 1 of a
// column are a word of value line r. Items 2 r + 1 and 2 r + 2 are made a word, once for the unit,
// and stored beside a copy of that line: so any two lie at 128 bytes times the number of the first,
// and the unit's place in the ring is free before its product begins. Where an
// item goes, and whether, is an operand of one byte permutation; how far a lane comes is the sum of
// its bits. Both are dot products of bytes that are 0 or a power of two.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// Spreads a unit of so many value lines, which begin at `from`: even pairs of items and, beside
// them, odd ones. A barrier of the warp follows. Eight lanes go down a quarter of the lines, 16
// bytes each.
__device__ __forceinline__ void spread_items(uint32_t from, uint32_t value_lines,
                                             uint32_t scratch) {
  const uint32_t lane = threadIdx.x % 32, quarters = (value_lines + 3) / 4;
  const uint32_t first = lane / 8 * quarters, chunk = lane % 8 * 16;
  from += first * kLineBytes + chunk;
  scratch += first * kRowBytes + chunk;
  const auto pairs = [](const uint4& a, const uint4& b) {
    return make_uint4(prmt(a.x, b.x, 0x5432), prmt(a.y, b.y, 0x5432), prmt(a.z, b.z, 0x5432),
                      prmt(a.w, b.w, 0x5432));
  };
  // Of lines that follow each other; the last one read may be one beyond the unit's last, of which
  // nothing is kept. To read a line twice takes fewer instructions than to keep it.
  const auto spread_rows = [&](auto& lines) {
    constexpr int kCount = sizeof lines / sizeof lines[0] - 1;
    FS_UNROLL
    for (int i = 0; i <= kCount; ++i) lines[i] = load_shared<uint4>(from + i * kLineBytes);
    FS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      store_shared(scratch + i * kRowBytes, lines[i]);
      store_shared(scratch + i * kRowBytes + kLineBytes, pairs(lines[i], lines[i + 1]));
    }
    from += kCount * kLineBytes;
    scratch += kCount * kRowBytes;
  };
  uint4 four[5], two[3], one[2];
  FS_NO_UNROLL
  for (uint32_t i = quarters / 4; i > 0; --i) spread_rows(four);
  if (quarters & 2) spread_rows(two);
  if (quarters & 1) spread_rows(one);
}

// The four weights of the bits q, q + 8, q + 16 and q + 24 of a mask: two words of an operand. The
// items that come now are at `at`, which moves on.
template <int q>
__device__ __forceinline__ void next_four(uint32_t mask, uint32_t& at, uint32_t& upper,
                                          uint32_t& lower) {
  // Of two weights, the selector: neither 0x4444 (zero), the first alone 0x6610, the second alone
  // 0x1044, both 0x3210.
  constexpr uint32_t kFirst = 0x21cc >> q, kSecond = 0x10000 - (0x3400 >> q);
  constexpr uint32_t kSelect = kFirst | kSecond << 16;
  constexpr uint32_t kAdvance = kLineBytes >> q;
  const uint32_t kept = mask & 0x01010101u << q;
  const uint32_t first = load_shared<uint32_t>(at);
  const uint32_t second = load_shared<uint32_t>(dp4a(kept, kAdvance * 0x0101, at));
  at = dp4a(kept, kAdvance * 0x01010101, at);
  upper = prmt(first, 0, dp2a_lo(kSelect, kept, 0x4444));
  lower = prmt(second, 0, dp2a_hi(kSelect, kept, 0x4444));
}

// A run of a lane.
class KeptValues {
 public:
  // Goes to the beginning of a run: `start` as the unit has it, `scratch` where it has been spread.
  __device__ __forceinline__ void begin(uint32_t scratch, uint32_t start) {
    at_ = scratch + start * 4;
  }

  // The A operands of two mma m16n8k16, of 32 columns: bits 4 part to 4 part + 3 of a mask's bytes.
  template <int part>
  __device__ __forceinline__ void next(uint32_t mask, uint32_t (&a)[2][4]) {
    const uint32_t later = mask >> 3, last = mask >> 6;
    if constexpr (part == 0) {
      next_four<0>(mask, at_, a[0][0], a[0][1]);
      next_four<1>(mask, at_, a[0][2], a[0][3]);
      next_four<2>(mask, at_, a[1][0], a[1][1]);
      next_four<0>(later, at_, a[1][2], a[1][3]);
    } else {
      next_four<1>(later, at_, a[0][0], a[0][1]);
      next_four<2>(later, at_, a[0][2], a[0][3]);
      next_four<0>(last, at_, a[1][0], a[1][1]);
      next_four<1>(last, at_, a[1][2], a[1][3]);
    }
  }

 private:
  uint32_t at_;  // where the next items lie
};

// The operands of a unit as it lies in memory, one item after the other: of 32 columns at a time.
// For units that are too full for the scratch.
class SlowOperands {
 public:
  __device__ __forceinline__ explicit SlowOperands(uint32_t unit)
      : values_(unit + kHeadBytes),
        masks_(unit + threadIdx.x % 32 * 16),
        starts_(load_shared<uint32_t>(unit + kMaskLines * kLineBytes + threadIdx.x % 32 * 4)) {}

  // Call it for 0 to 7.
  __device__ __forceinline__ void next(int columns, uint32_t (&a)[2][4]) {
    if (columns % 2 == 0) mask_ = load_shared<uint32_t>(masks_ + columns / 2 * 4);
    if (columns % 4 == 0) {
      const uint32_t start = columns == 0 ? starts_ & 0xffff : starts_ >> 16;
      column_ = values_ + start % kLineWords * 4;
      item_ = start / kLineWords;
    }
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      uint32_t two[2];
      FS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const uint32_t kept = mask_ >> (i / 2 + i % 2 * 16 + e * 8) & 1;
        const uint32_t at = column_ + item_ / 2 * kLineBytes + item_ % 2 * 2;
        two[e] = load_shared<uint16_t>(at) * kept;
        item_ += kept;
      }
      a[i / 4][i % 4] = two[0] | two[1] << 16;
    }
    mask_ >>= 4;
  }

 private:
  const uint32_t values_, masks_, starts_;
  uint32_t mask_ = 0, column_ = 0, item_ = 0;
};

}  // namespace flashsparse::tiled_bitmap
