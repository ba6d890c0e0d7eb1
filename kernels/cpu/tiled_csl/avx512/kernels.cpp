// SPDX-License-Identifier: Apache-2.0
// Packs a tile of a dense weight to Tiled-CSL words, in the canonical order (formats/tiled_csl.h),
// and converts a dense tile to panels.
#include "cpu/tiled_csl/kernels.h"

#include "cpu/avx512/panel.h"
#include "cpu/tiled_csl/order.h"

namespace {

using flashsparse::tiled_csl::BankQueues;
constexpr int kBanks = 32;

// The pairs of a tile, bank by bank, with 16 words of slack.
struct Pairs {
  alignas(64) uint32_t low[kBanks][128 + 16], high[kBanks][128 + 16];
  int count[kBanks];
};

// lanes[b] = the 16 rows' 32-bit words in bank b. `weight` points to the first of `rows` rows.
FS_INLINE void load_banks(const uint16_t* weight, int64_t stride, int rows, int cols,
                          Bits (&lanes)[kBanks]) {
  for (int half = 0; half < 2; ++half) {
    Bits row[16];
    const __mmask32 inside = lanes32(cols - 32 * half);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const uint16_t* from = weight + r * stride + 32 * half;
      Bits chunks = r < rows ? _mm512_maskz_loadu_epi16(inside, from) : _mm512_setzero_si512();
      if (r < rows) prefetch(from, 128);  // the next tile
      // 16-byte chunk c of row r moves to chunk c ^ (r & 7); bits 1 and 0 of r here.
      chunks = swap_chunks(chunks, r & 3);
      row[r] = chunks;
    }
    transpose16x16(row);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) lanes[16 * half + i] = row[i];
  }
  // Bit 2 of r: rows 4-7 and 12-15 exchange the halves.
  for (int b = 0; b < 16; ++b) {
    const Bits first = lanes[b], second = lanes[b + 16];
    lanes[b] = _mm512_mask_blend_epi32(0xf0f0, first, second);
    lanes[b + 16] = _mm512_mask_blend_epi32(0xf0f0, second, first);
  }
}

// Appends 16 rows to the queues: singles in place, pairs apart.
FS_INLINE void append(const Bits (&lanes)[kBanks], int first_row, BankQueues& banks, Pairs& pairs) {
  const Bits row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  Bits location = _mm512_slli_epi32(_mm512_add_epi32(row, _mm512_set1_epi32(first_row)), 6);
  for (int b = 0; b < kBanks; ++b) {
    const Bits high_location = _mm512_add_epi32(location, _mm512_set1_epi32(1));
    const Bits low = _mm512_or_si512(_mm512_slli_epi32(lanes[b], 16), location);
    const Bits high = _mm512_mask_blend_epi16(0xaaaaaaaau, high_location, lanes[b]);
    const uint32_t has_low = _mm512_test_epi32_mask(lanes[b], _mm512_set1_epi32(0x7fff));
    const uint32_t has_high = _mm512_test_epi32_mask(lanes[b], _mm512_set1_epi32(0x7fff0000));
    const uint32_t single = has_low ^ has_high, both = has_low & has_high;

    const Bits word = _mm512_mask_blend_epi32(static_cast<__mmask16>(has_low), high, low);
    _mm512_storeu_si512(banks.words[b] + banks.singles[b], compress32(single, word));
    banks.singles[b] += __builtin_popcount(single);

    _mm512_storeu_si512(pairs.low[b] + pairs.count[b], compress32(both, low));
    _mm512_storeu_si512(pairs.high[b] + pairs.count[b], compress32(both, high));
    pairs.count[b] += __builtin_popcount(both);
    location = _mm512_add_epi32(location, _mm512_set1_epi32(2));
  }
}

// Appends the pairs after the singles, halves next to each other.
FS_INLINE void append_pairs(const Pairs& pairs, BankQueues& banks) {
  const Bits first8 = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const Bits last8 = _mm512_add_epi32(first8, _mm512_set1_epi32(8));
  for (int b = 0; b < kBanks; ++b) {
    uint32_t* out = banks.words[b] + banks.singles[b];
    for (int i = 0; i < pairs.count[b]; i += 16, out += 32) {
      const Bits low = _mm512_load_si512(pairs.low[b] + i);
      const Bits high = _mm512_load_si512(pairs.high[b] + i);
      const int words = 2 * (pairs.count[b] - i);
      _mm512_storeu_si512(out, _mm512_permutex2var_epi32(low, first8, high));
      _mm512_mask_storeu_epi32(out + 16, lanes16(words - 16),
                               _mm512_permutex2var_epi32(low, last8, high));
    }
    banks.count[b] = banks.singles[b] + 2 * pairs.count[b];
  }
}

// Writes word g of every bank, bank after bank, for g < groups.
FS_INLINE void write_full_groups(const BankQueues& banks, int groups, uint32_t* words) {
  for (int g = 0; g < groups; g += 16) {
    for (int half = 0; half < 2; ++half) {
      Bits queue[16];
#pragma GCC unroll 16
      for (int b = 0; b < 16; ++b) queue[b] = _mm512_loadu_si512(banks.words[16 * half + b] + g);
      transpose16x16(queue);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (g + i < groups) _mm512_storeu_si512(words + 32 * (g + i) + 16 * half, queue[i]);
      }
    }
  }
}

void count_tiles(const uint16_t* row, int64_t cols, int64_t* nonzeros) {
  const Bits magnitude = _mm512_set1_epi16(0x7fff);
  for (int64_t col = 0; col < cols; col += 64, ++nonzeros) {
    const __mmask32 first = lanes32(cols - col), second = lanes32(cols - col - 32);
    const Bits low = _mm512_maskz_loadu_epi16(first, row + col);
    const Bits high = _mm512_maskz_loadu_epi16(second, row + col + 32);
    const uint64_t kept = static_cast<uint64_t>(_mm512_test_epi16_mask(high, magnitude)) << 32 |
                          _mm512_test_epi16_mask(low, magnitude);
    *nonzeros += __builtin_popcountll(kept);
  }
}

int64_t pack_tile(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* words) {
  BankQueues banks;
  Pairs pairs;
  for (int b = 0; b < kBanks; ++b) banks.singles[b] = pairs.count[b] = 0;
  for (int r = 0; r < rows; r += 16) {
    Bits lanes[kBanks];
    load_banks(weight + r * stride, stride, rows - r, cols, lanes);
    append(lanes, r, banks, pairs);
  }
  append_pairs(pairs, banks);
  const int groups = banks.shortest();
  write_full_groups(banks, groups, words);
  return flashsparse::tiled_csl::write_remaining(banks, groups, words + 32 * groups) - words;
}

uint16_t* pack_tile_panel(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                          uint16_t* values) {
  const int64_t pairs = (cols + 1) / 2;
  for (int half = 0; half < 2 && half * kBlockPairs < pairs; ++half) {
    Bits row[16];
    const __mmask32 lanes = lanes32(cols - 32 * half);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      // 16-byte chunk c of row r is at chunk c ^ (r & 7): bit 2 of r exchanges the halves of the
      // row, bits 1 and 0 exchange chunks in a half.
      Bits chunks = _mm512_loadu_si512(tile + r * 64 + 32 * (half ^ (r >> 2 & 1)));
      chunks = swap_chunks(chunks, r & 3);
      row[r] = _mm512_maskz_mov_epi16(r < rows ? lanes : 0, chunks);
    }
    values = pack_block(row, pairs - half * kBlockPairs, masks + half * kBlockPairs, values);
  }
  return values;
}

}  // namespace

namespace flashsparse::tiled_csl::avx512 {
const Kernels kKernels = {count_tiles, pack_tile, pack_tile_panel};
}
