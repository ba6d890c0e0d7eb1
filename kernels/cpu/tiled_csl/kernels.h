// SPDX-License-Identifier: Apache-2.0
// The inner kernels that only Tiled-CSL needs, for each instruction set.
#pragma once
#include <cstdint>

namespace flashsparse::tiled_csl {

struct Kernels {
  // Adds the nonzeros of each 64 columns of a row to the entries of `nonzeros`.
  void (*count_tiles)(const uint16_t* row, int64_t cols, int64_t* nonzeros);
  // Writes the words of a tile of a dense weight (`rows` rows `stride` apart), in canonical order
  // and without padding; returns their number.
  int64_t (*pack_tile)(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* words);
  // Converts 16 rows of a dense tile, whose elements are at their locations (formats/tiled_csl.h),
  // to the mask words and values of a panel; returns the end of the values.
  uint16_t* (*pack_tile_panel)(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                               uint16_t* values);
};

// The table for this machine (cpu/capability.h).
const Kernels& kernels();

namespace portable {
extern const Kernels kKernels;
}
#ifdef FLASHSPARSE_X86
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace flashsparse::tiled_csl
