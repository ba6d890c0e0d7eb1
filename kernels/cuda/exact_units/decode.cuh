// SPDX-License-Identifier: Apache-2.0
// From the words of a unit to operand A of mma.m16n8k16: 13 instructions for a lane's eight
// weights, exactly. And from there, and from a slot, to the bits of weights, for unpacking.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/widen.cuh"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

// A lane's three words of 16 columns. The registers are weights over the scales of their rows.
__device__ __forceinline__ void decode(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t (&a)[4]) {
  // As a bfloat16 the code is a small exponent. The product gives it its bias, and keeps zeros.
  const auto times = [](uint32_t two) { return fma_two<BFloat16>(two, kTwoTo112, 0x80008000); };
  uint32_t last = funnel_right(w0, w0, 12) & 0x80078007;
  last |= w1 >> 8 & 0x00780078;
  last |= w2 >> 4 & 0x07800780;
  a[0] = times(w0 & kRegisterMask);
  a[1] = times(w1 & kRegisterMask);
  a[2] = times(w2 & kRegisterMask);
  a[3] = times(last);
}

// The same for step 0 to 3 of the lane's 12 words of a panel.
__device__ __forceinline__ void decode(const uint4 (&panel)[kPanelVectors], int step,
                                       uint32_t (&a)[4]) {
  if (step == 0) decode(panel[0].x, panel[0].y, panel[0].z, a);
  if (step == 1) decode(panel[0].w, panel[1].x, panel[1].y, a);
  if (step == 2) decode(panel[1].z, panel[1].w, panel[2].x, a);
  if (step == 3) decode(panel[2].y, panel[2].z, panel[2].w, a);
}

// A lane's words of a panel; `unit` begins with those of vector 0.
__device__ __forceinline__ void load_panel(const uint4* unit, int panel,
                                           uint4 (&words)[kPanelVectors]) {
  FS_UNROLL
  for (int i = 0; i < kPanelVectors; ++i) {
    words[i] = load_streaming(unit + (panel * kPanelVectors + i) * 32);
  }
}

// The scales of a lane's rows, `upper` and the eighth below it, each twice as a bfloat16: its
// exponent alone. 0 past the last row.
__device__ __forceinline__ void load_scales(const float* scales, uint32_t upper, int rows,
                                            uint32_t (&both)[2]) {
  FS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = upper + half * 8;
    both[half] = row < rows ? __float_as_uint(scales[row]) >> 16 : 0;
    both[half] |= both[half] << 16;
  }
}

// Two weights from a register of `decode`, by their row's scale. Exact: it is a power of two.
__device__ __forceinline__ uint32_t unscaled_two(uint32_t a, uint32_t scale) {
  return fma_two<BFloat16>(a, scale, 0x80008000);
}

// The bits of the weight of a slot.
__device__ __forceinline__ uint16_t unscaled(uint32_t slot, float scale) {
  const uint16_t bits = slot_bits(slot);
  if ((bits & 0x7f80) == 0x7f80) return bits;  // infinities and NaN
  return from_float<BFloat16>(to_float<BFloat16>(bits) * scale);
}

}  // namespace flashsparse::exact_units
