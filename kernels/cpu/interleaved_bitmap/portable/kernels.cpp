// SPDX-License-Identifier: Apache-2.0
// Converts dense rows to a panel, and back.
#include "cpu/interleaved_bitmap/kernels.h"

#include "cpu/portable/pack_panel.h"

namespace flashsparse::interleaved_bitmap::portable {
namespace {

template <typename Value>
Value* pack_panel(const Value* weight, int64_t stride, int rows, int64_t cols, uint32_t* masks,
                  Value* values) {
  return cpu::portable::pack_elements(rows, cols, masks, values,
                                      [=](int r, int64_t c) { return weight[r * stride + c]; });
}

template <typename Value>
void unpack_panel(const cpu::Panel& panel, int rows, int64_t cols, Value* weight, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) weight[r * stride + c] = 0;
  }
  const Value* value = static_cast<const Value*>(panel.values);
  for (int64_t col = 0; col < cols; col += 2) {
    for (uint32_t mask = panel.masks[col / 2]; mask; mask &= mask - 1, ++value) {
      const int row = __builtin_ctz(mask) / 2, c = __builtin_ctz(mask) & 1;
      if (row < rows && col + c < cols) weight[row * stride + col + c] = *value;
    }
  }
}

}  // namespace

uint32_t* pack_panel32(const uint32_t* weight, int64_t stride, int rows, int64_t cols,
                       uint32_t* masks, uint32_t* values) {
  return pack_panel(weight, stride, rows, cols, masks, values);
}
void unpack_panel32(const cpu::Panel& panel, int rows, int64_t cols, uint32_t* weight,
                    int64_t stride) {
  unpack_panel(panel, rows, cols, weight, stride);
}

const Kernels kKernels = {pack_panel<uint16_t>, unpack_panel<uint16_t>, pack_panel32,
                          unpack_panel32};

}  // namespace flashsparse::interleaved_bitmap::portable
