// SPDX-License-Identifier: Apache-2.0
// The index of nm_vector, eight positions at a time: they take as many bytes as one has bits.
#pragma once
#include "common/memory.cuh"

namespace flashsparse::nm_vector {

// Loads `count` positions, at most eight, that begin at a byte. Bits above them are undefined. Word
// holds eight positions.
template <class Word>
__device__ __forceinline__ Word load_positions(const uint8_t* from, int bits, int count) {
  Word positions = 0;
  FS_UNROLL  // so that all loads are in flight at once
      for (int byte = 0; byte < static_cast<int>(sizeof(Word)); ++byte) {
    if (byte * 8 < count * bits) {
      positions |= static_cast<Word>(load_readonly(from + byte)) << byte * 8;
    }
  }
  return positions;
}

}  // namespace flashsparse::nm_vector
