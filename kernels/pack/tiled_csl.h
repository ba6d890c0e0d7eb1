// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL <-> dense on the CPU. Dense weights are row-major 16-bit values [rows, cols].
#pragma once
#include <cstdint>
#include <string>

namespace flashsparse::tiled_csl {

// Words of every tile, padded to kWordAlignment, summed up: offsets[tiles + 1], offsets[0] = 0.
void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* offsets);

// Fills words[offsets[tiles]] in canonical order; `offsets` as `count` made them.
void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words);

struct Packed {  // tensors of any origin: nothing but the two array lengths is trusted
  const uint32_t* words;
  int64_t num_words;
  const int32_t* offsets;  // [tile_rows(rows) * tile_cols(cols) + 1]
  int64_t rows, cols;
};

struct Validation {
  int64_t nonzeros = 0;  // distinct locations with a value other than zero
  std::string error;     // empty where the tensors are sound, else the first rule they break
};

// Proves that no kernel can read or write out of bounds on these tensors, and that the order of
// words cannot change a result: offsets rise from 0 to num_words in steps of kWordAlignment, every
// location lies inside its (possibly cut) tile, and words that share a location are equal.
Validation validate(const Packed& packed);

// Writes every element of weight[rows, cols], zeros included, and validates on the way. Where there
// is an error, what was written is unspecified.
Validation unpack(const Packed& packed, uint16_t* weight);

}  // namespace flashsparse::tiled_csl
