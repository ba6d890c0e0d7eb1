// SPDX-License-Identifier: Apache-2.0
// Spreads a unit: writes every pair of adjacent items to a scratch, once per unit and warp. Lanes
// then need no shifts, and one word for two items (kept_values.cuh). That pays at low density.
//
// Items 2 r and 2 r + 1 of a column are a word of value line r. Items 2 r + 1 and 2 r + 2 are
// joined to a word of another line, which is stored next to a copy of line r. So the pair that
// begins with item i is 128 * i bytes down its column, and the unit's space in the ring is free
// before its product begins.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// Spreads a unit of `value_lines` lines that begin at `from`: even pairs and, next to them, odd
// pairs, from scratch + kScratchHead on. A warp barrier must follow. Eight lanes process a quarter
// of the lines, 16 bytes each.
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
  // The first item is the second of a pair, too.
  if (lane < 8) {
    const auto line = load_shared<uint4>(from);
    store_shared(scratch + kLineBytes,
                 make_uint4(line.x << 16, line.y << 16, line.z << 16, line.w << 16));
  }
  scratch += kScratchHead;
  // Spreads consecutive lines. The last one read may be past the end of the unit; what it holds is
  // not used. Reading a line twice takes fewer instructions than keeping it.
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

// A lane's position in its column of a spread unit.
class SpreadItems {
 public:
  // `start` as stored in the unit, `scratch` the shared address of the spread unit.
  __device__ __forceinline__ void begin(uint32_t scratch, uint32_t start) {
    at_ = scratch + kScratchHead + start * 4;
  }
  // The two items at the current position.
  __device__ __forceinline__ uint32_t next() const { return load_shared<uint32_t>(at_); }
  // As RingItems::pass.
  template <int bit, bool is_last>
  __device__ __forceinline__ void pass(uint32_t kept, uint32_t& before, uint32_t& next) {
    at_ = dp4a(kept, (uint32_t{kLineBytes} >> bit) * 0x01010101, at_);
    before = load_shared<uint32_t>(at_ - 2 * kLineBytes);
    if constexpr (!is_last) next = load_shared<uint32_t>(at_);
  }

 private:
  uint32_t at_;
};

}  // namespace flashsparse::tiled_bitmap
