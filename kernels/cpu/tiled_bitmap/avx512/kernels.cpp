// SPDX-License-Identifier: Apache-2.0
// Converts a dense unit to masks and value lines, and back.
//
// The 64 columns of a mask word in rows g and g + 8 are four registers of 16 column pairs; pair 4 j
// + t of a row belongs to lane 4 g + t. Permuted, they become one register for each of the four
// lanes, with its 32 weights in the order of its run.
#include "cpu/tiled_bitmap/kernels.h"

#include "cpu/avx512/panel.h"
#include "cpu/kernels.h"

namespace {

using namespace flashsparse::tiled_bitmap;

constexpr int kWordCols = 64;  // of a mask word
constexpr uint64_t kEveryEighth = 0x0101010101010101;

// Items of each column, with space for what a store writes past the last.
struct Columns {
  alignas(64) uint16_t items[kLineWords][kColumnItems + 32];
};

// Indices of the 32-bit lanes of two registers; 16 and up are those of the second.
FS_INLINE Bits pairs_of_two_lanes(int t) {  // t and t + 1, j rising in each
  const Bits every4 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  return _mm512_add_epi32(every4, _mm512_set1_epi32(t));
}
FS_INLINE Bits interleaved(int first) {
  const Bits lanes = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
}
FS_INLINE Bits every_second(int first) {
  const Bits lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
}
FS_INLINE Bits pairs_of_row(int first_j) {
  const Bits lanes = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  return _mm512_add_epi32(lanes, _mm512_set1_epi32(first_j));
}

FS_INLINE Bits pick(Bits first, Bits numbers, Bits second) {
  return _mm512_permutex2var_epi32(first, numbers, second);
}

// Loads 32 columns from `col` on of row r; zeros past the edges.
FS_INLINE Bits load_row(const uint16_t* weight, int64_t stride, int rows, int cols, int r,
                        int col) {
  if (r >= rows) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(lanes32(cols - col), weight + r * stride + col);
}

FS_INLINE uint64_t kept_in_row(const uint16_t* weight, int64_t stride, int rows, int cols, int r,
                               int col) {
  const uint32_t low = nonzero(load_row(weight, stride, rows, cols, r, col));
  const uint32_t high = nonzero(load_row(weight, stride, rows, cols, r, col + 32));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Moves bits 8 j + 2 t and 8 j + 2 t + 1 to j and j + 8.
FS_INLINE uint32_t bits_of_lane(uint64_t row, int t) {
  return static_cast<uint32_t>(_pext_u64(row, kEveryEighth << 2 * t) |
                               _pext_u64(row, kEveryEighth << (2 * t + 1)) << 8);
}

// Moves bit j + 8 e to bit 4 j + e: that of its item.
FS_INLINE uint32_t in_item_order(uint32_t mask) {
  return _pdep_u32(mask, 0x11111111) | _pdep_u32(mask >> 8, 0x22222222) |
         _pdep_u32(mask >> 16, 0x44444444) | _pdep_u32(mask >> 24, 0x88888888);
}

void read_masks(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* masks) {
  for (int g = 0; g < 8; ++g) {
    for (int word = 0; word < kMaskWords; ++word) {
      const int col = word * kWordCols;
      const uint64_t upper = kept_in_row(weight, stride, rows, cols, g, col);
      const uint64_t lower = kept_in_row(weight, stride, rows, cols, g + 8, col);
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        masks[(4 * g + t) * kMaskWords + word] = bits_of_lane(upper, t) | bits_of_lane(lower, t)
                                                                              << 16;
      }
    }
  }
}

void count_runs(const uint32_t* masks, RunLengths lengths) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t* own = masks + lane * kMaskWords;
    for (int run = 0; run < kRuns; ++run) {
      lengths[run][lane] = static_cast<uint8_t>(__builtin_popcount(own[2 * run]) +
                                                __builtin_popcount(own[2 * run + 1]));
    }
  }
}

// Positions of the lanes' runs in their columns.
struct Cursors {
  uint16_t* at[kLanes];

  Cursors(Columns& columns, const uint32_t* starts, int run) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t start = starts[lane] >> 16 * run & 0xffff;
      at[lane] = columns.items[start % kLineWords] + start / kLineWords;
    }
  }
};

// Loads the weights of lanes 4 g to 4 g + 3 under a mask word, in the order of items.
FS_INLINE void load_lanes(const uint16_t* weight, int64_t stride, int rows, int cols, int g,
                          int col, Bits (&lane)[4]) {
  const Bits upper0 = load_row(weight, stride, rows, cols, g, col);
  const Bits upper1 = load_row(weight, stride, rows, cols, g, col + 32);
  const Bits lower0 = load_row(weight, stride, rows, cols, g + 8, col);
  const Bits lower1 = load_row(weight, stride, rows, cols, g + 8, col + 32);
#pragma GCC unroll 2
  for (int t = 0; t < 4; t += 2) {
    const Bits upper = pick(upper0, pairs_of_two_lanes(t), upper1);
    const Bits lower = pick(lower0, pairs_of_two_lanes(t), lower1);
    lane[t] = pick(upper, interleaved(0), lower);
    lane[t + 1] = pick(upper, interleaved(8), lower);
  }
}

// The inverse of load_lanes, to rows `stride` apart.
FS_INLINE void store_lanes(const Bits (&lane)[4], int g, int col, uint16_t* unit, int64_t stride) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Bits first = pick(lane[0], every_second(half), lane[1]);
    const Bits second = pick(lane[2], every_second(half), lane[3]);
    uint16_t* row = unit + (g + 8 * half) * stride + col;
    _mm512_storeu_si512(row, pick(first, pairs_of_row(0), second));
    _mm512_storeu_si512(row + 32, pick(first, pairs_of_row(4), second));
  }
}

// Loads 16 words of a column from word `word` on.
FS_INLINE Bits load_words(const uint16_t* items, int item_bytes, int word) {
  if (item_bytes == 2) return _mm512_load_si512(items + 2 * word);
  const __m256i low = _mm512_cvtepi16_epi8(_mm512_load_si512(items + 4 * word));
  const __m256i high = _mm512_cvtepi16_epi8(_mm512_load_si512(items + 4 * word + 32));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
FS_INLINE void store_words(uint16_t* items, int item_bytes, int word, Bits words) {
  if (item_bytes == 2) return _mm512_store_si512(items + 2 * word, words);
  const Bits mark = _mm512_set1_epi16(static_cast<int16_t>(flashsparse::cpu::kMark));
  const Bits low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(words));
  const Bits high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(words, 1));
  // A stored value of 0 becomes a zero.
  const Bits zero = _mm512_set1_epi16(kCodeZero);
  const auto marked = [&](Bits bytes) {
    return _mm512_maskz_add_epi16(_mm512_cmpneq_epi16_mask(bytes, zero), bytes, mark);
  };
  _mm512_store_si512(items + 4 * word, marked(low));
  _mm512_store_si512(items + 4 * word + 32, marked(high));
}

void write_values(const uint16_t* weight, int64_t stride, int rows, int cols, const uint32_t*,
                  const uint32_t* starts, int item_bytes, int value_lines, uint32_t* lines) {
  Columns columns;
  for (auto& column : columns.items) {
    for (int item = 0; item < 4 / item_bytes * value_lines; item += 32) {
      _mm512_store_si512(column + item, _mm512_setzero_si512());
    }
  }
  // Stores write zeros past the values of a run, so all runs 0 are stored before any run 1.
  for (int run = 0; run < kRuns; ++run) {
    Cursors cursors(columns, starts, run);
    for (int g = 0; g < 8; ++g) {
      for (int word = run * kRunMasks; word < (run + 1) * kRunMasks; ++word) {
        Bits lane[4];
        load_lanes(weight, stride, rows, cols, g, word * kWordCols, lane);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const uint32_t kept = nonzero(lane[t]);
          uint16_t*& at = cursors.at[4 * g + t];
          _mm512_storeu_si512(at, compress16(kept, lane[t]));
          at += __builtin_popcount(kept);
        }
      }
    }
  }
  for (int line = 0; line < value_lines; line += 16) {
    for (int half = 0; half < 2; ++half) {
      Bits block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        block[i] = load_words(columns.items[16 * half + i], item_bytes, line);
      }
      transpose16x16(block);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (line + i < value_lines) {
          _mm512_storeu_si512(lines + (line + i) * kLineWords + 16 * half, block[i]);
        }
      }
    }
  }
}

void read_unit(const uint32_t* lines, int item_bytes, int value_lines, uint16_t* unit,
               int64_t stride) {
  const uint32_t* values = lines + kHeadLines * kLineWords;
  Columns columns;
  for (int line = 0; line < value_lines; line += 16) {
    for (int half = 0; half < 2; ++half) {
      Bits block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        block[i] = line + i < value_lines
                       ? _mm512_loadu_si512(values + (line + i) * kLineWords + 16 * half)
                       : _mm512_setzero_si512();
      }
      transpose16x16(block);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        store_words(columns.items[16 * half + i], item_bytes, line, block[i]);
      }
    }
  }
  for (int run = 0; run < kRuns; ++run) {
    Cursors cursors(columns, lines + kUnitMasks, run);
    for (int g = 0; g < 8; ++g) {
      for (int word = run * kRunMasks; word < (run + 1) * kRunMasks; ++word) {
        Bits lane[4];
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const uint32_t mask = lines[(4 * g + t) * kMaskWords + word];
          lane[t] = expand(in_item_order(mask), cursors.at[4 * g + t]);
          cursors.at[4 * g + t] += __builtin_popcount(mask);
        }
        store_lanes(lane, g, word * kWordCols, unit, stride);
      }
    }
  }
}

}  // namespace

namespace flashsparse::tiled_bitmap::avx512 {
const Kernels kKernels = {read_masks, count_runs, write_values, read_unit};
}
