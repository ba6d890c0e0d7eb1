// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers of hybrid_units: a weight on stdin.
//   weight  int32 units[words]; int32 offsets[units + 1]; float scales[rows] if rows have them
#pragma once
#include <cstdint>
#include <cstdlib>

#include "emulator/driver.h"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

struct Weight {
  driver::DeviceArray<uint32_t> units{nullptr, &std::free};
  driver::DeviceArray<int32_t> offsets{nullptr, &std::free};
  driver::DeviceArray<float> scales{nullptr, &std::free};

  void read(int64_t rows, int64_t cols, UnitLayout unit, int64_t words) {
    units = driver::read<uint32_t>(words);
    offsets = driver::read<int32_t>(unit_rows(rows) * unit_cols(cols) + 1);
    scales = driver::read<float>(unit.has_row_scales() ? rows : 0);
  }
};

}  // namespace flashsparse::hybrid_units
