// SPDX-License-Identifier: Apache-2.0
// The inner kernels that only the interleaved bitmap needs, for each instruction set.
#pragma once
#include <cstdint>

#include "cpu/kernels.h"

namespace flashsparse::interleaved_bitmap {

struct Kernels {
  // Packs dense rows (at most 16, `stride` apart) to mask words and values; returns the end of the
  // values.
  uint16_t* (*pack_panel)(const uint16_t* weight, int64_t stride, int rows, int64_t cols,
                          uint32_t* masks, uint16_t* values);
  // Writes every element of `rows` dense rows, `stride` apart.
  void (*unpack_panel)(const cpu::Panel& panel, int rows, int64_t cols, uint16_t* weight,
                       int64_t stride);
  // The same two for fp32.
  uint32_t* (*pack_panel32)(const uint32_t* weight, int64_t stride, int rows, int64_t cols,
                            uint32_t* masks, uint32_t* values);
  void (*unpack_panel32)(const cpu::Panel& panel, int rows, int64_t cols, uint32_t* weight,
                         int64_t stride);
};

// The table for this machine (cpu/capability.h).
const Kernels& kernels();

namespace portable {
extern const Kernels kKernels;
// Plain C++, shared by all tables: fp32 weights are packed once, and rarely.
uint32_t* pack_panel32(const uint32_t* weight, int64_t stride, int rows, int64_t cols,
                       uint32_t* masks, uint32_t* values);
void unpack_panel32(const cpu::Panel& panel, int rows, int64_t cols, uint32_t* weight,
                    int64_t stride);
}  // namespace portable
#ifdef FLASHSPARSE_X86
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace flashsparse::interleaved_bitmap
