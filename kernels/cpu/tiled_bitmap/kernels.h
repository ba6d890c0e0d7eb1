// SPDX-License-Identifier: Apache-2.0
// The inner kernels that only tiled_bitmap needs, for each instruction set.
#pragma once
#include <cstdint>

#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr int kLanes = 32;
inline constexpr int kUnitMasks = kLanes * kMaskWords;
inline constexpr int kColumnItems = kLaneWeights;  // of a column, at most

// Kept values of each run of each lane.
using RunLengths = uint8_t[kRuns][kLanes];

// Weights have 16 bits here. Int8 values, which are one-byte items in the lines of a unit, are
// marked (cpu/marked.h).
struct Kernels {
  // The mask words of a unit. Its `rows` x `cols` values inside of the weight are at `weight`, rows
  // `stride` apart.
  void (*read_masks)(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* masks);
  void (*count_runs)(const uint32_t* masks, RunLengths lengths);
  // The value lines of a unit, from its weights and the words of its head.
  void (*write_values)(const uint16_t* weight, int64_t stride, int rows, int cols,
                       const uint32_t* masks, const uint32_t* starts, int item_bytes,
                       int value_lines, uint32_t* lines);
  // Writes all kUnitRows x kUnitCols weights of a valid unit, zeros included, to rows `stride`
  // apart.
  void (*read_unit)(const uint32_t* lines, int item_bytes, int value_lines, uint16_t* unit,
                    int64_t stride);
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

}  // namespace flashsparse::tiled_bitmap
