// SPDX-License-Identifier: Apache-2.0
// Runs the kernel that widens units of 2:4 over every case on stdin.
//   case    int64 rows, cols, seed, slots of a unit, Kind (k24), room of the list; the weight
//           (weight.h)
//   answer  int32 units of sparse_24
#include <cstdint>

#include "cuda/exact_units/widen_24.cuh"
#include "emulator/exact_units/weight.h"

using namespace flashsparse::exact_units;

int main() {
  int64_t header[6];
  while (driver::read_header(header)) {
    const auto [rows, cols, seed, unit_slots, kind, room] = header;
    if (static_cast<Kind>(kind) != Kind::k24) return 1;
    Weight packed;
    packed.read(rows, cols, Kind::k24, unit_slots, room);
    const int64_t count = unit_rows(rows) * unit_cols(cols);
    const auto units = driver::device_array<uint32_t>(count * kWidened.words());
    simt::launch(static_cast<unsigned>(count), kWidenThreads, static_cast<unsigned>(seed),
                 [&, rows = rows, cols = cols] {
                   widen_24_kernel(packed.units.get(), packed.scales.get(), packed.exceptions(),
                                   static_cast<int>(rows), cols, units.get());
                 });
    driver::write(units.get(), count * kWidened.words());
  }
}
