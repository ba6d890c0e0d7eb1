// SPDX-License-Identifier: Apache-2.0
// A weight in nm_gather, as the drivers read it.
#pragma once
#include <cstdint>

#include "emulator/driver.h"
#include "formats/nm_gather.h"

namespace driver {

// Reads the bytes of values, uint8 index, and float row_scales[rows] for value types that have
// them.
struct NmGatherWeight {
  flashsparse::nm_gather::Layout layout;
  DeviceArray<uint8_t> values;
  DeviceArray<uint8_t> index;
  DeviceArray<float> row_scales;

  // `value_type` is the number of a ValueType, plus 8 times the columns that share a scale.
  NmGatherWeight(int64_t n, int64_t m, int64_t vector_length, int64_t value_type, int64_t rows,
                 int64_t cols)
      : layout(flashsparse::nm_gather::layout_of(
            n, m, vector_length, static_cast<flashsparse::ValueType>(value_type % 8),
            static_cast<int>(value_type / 8))),
        values(read<uint8_t>(layout.units(rows) * layout.pairs(cols) * layout.pair_bytes())),
        index(read<uint8_t>(layout.groups(rows) * layout.pairs(cols) *
                            flashsparse::nm_gather::kPair)),
        row_scales(
            read<float>(flashsparse::nm_gather::scaled_by_row(layout.value_type) ? rows : 0)) {}

  flashsparse::nm_gather::Stored stored() const {
    return {values.get(), index.get(), row_scales.get()};
  }
};

}  // namespace driver
