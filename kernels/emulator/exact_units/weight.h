// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers of exact_units: a weight on stdin.
//   weight  int32 units; float scales[rows]; int32 slots; int32 listed[room * 2];
//           int32 offsets[unit rows + 1]
#pragma once
#include <cstdint>
#include <cstdlib>

#include "cuda/exact_units/linear_arguments.h"
#include "emulator/driver.h"

namespace flashsparse::exact_units {

struct Weight {
  template <class T>
  using Array = driver::DeviceArray<T>;

  Array<uint32_t> units{nullptr, &std::free};
  Array<float> scales{nullptr, &std::free};
  Array<uint32_t> slots{nullptr, &std::free}, list{nullptr, &std::free},
      offsets{nullptr, &std::free};
  int unit_slots = 0;

  void read(int64_t rows, int64_t cols, Kind kind, int64_t slots_of_unit, int64_t room) {
    const int64_t count = unit_rows(rows) * unit_cols(cols);
    unit_slots = static_cast<int>(slots_of_unit);
    units = driver::read<uint32_t>(count * unit_words(kind));
    scales = driver::read<float>(rows);
    slots = driver::read<uint32_t>(count * unit_slots);
    list = driver::read<uint32_t>(room * 2);
    offsets = driver::read<uint32_t>(unit_rows(rows) + 1);
  }
  Exceptions exceptions() const { return {slots.get(), list.get(), offsets.get(), unit_slots}; }
};

}  // namespace flashsparse::exact_units
