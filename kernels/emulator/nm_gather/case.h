// SPDX-License-Identifier: Apache-2.0
// A weight in nm_gather, as the drivers are fed with it.
#pragma once
#include <cstdint>

#include "emulator/driver.h"
#include "formats/nm_gather.h"

namespace driver {

// Reads uint16 values, uint8 index.
struct NmGatherWeight {
  flashsparse::nm_gather::Layout layout;
  DeviceArray<uint16_t> values;
  DeviceArray<uint8_t> index;

  NmGatherWeight(int64_t n, int64_t m, int64_t vector_length, int64_t rows, int64_t cols)
      : layout(flashsparse::nm_gather::layout_of(n, m, vector_length)),
        values(read<uint16_t>(layout.units(rows) * layout.pairs(cols) * layout.unit_rows *
                              flashsparse::nm_gather::kPair)),
        index(read<uint8_t>(layout.groups(rows) * layout.pairs(cols) *
                            flashsparse::nm_gather::kPair)) {}
};

}  // namespace driver
