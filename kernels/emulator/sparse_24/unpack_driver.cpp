// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, seed, bfloat16, value type, group; int32 units; float scales[rows] if
//           rows have them
//   answer  uint16 weight[rows * cols]
#include <cstdint>

#include "cuda/sparse_24/unpack.cuh"
#include "emulator/driver.h"

using namespace flashsparse::sparse_24;

int main() {
  int64_t header[6];
  while (driver::read_header(header)) {
    const auto [rows, cols, seed, bfloat16, type, group] = header;
    const UnitLayout unit{static_cast<flashsparse::ValueType>(type), static_cast<int>(group)};
    const int64_t count = unit_rows(rows) * unit_cols(cols);
    const auto units = driver::read<uint32_t>(count * unit.words());
    const auto scales = driver::read<float>(unit.has_row_scales() ? rows : 0);
    const UnpackKernel kernel = compiled_unpack(unit, bfloat16);
    const auto weight = driver::device_array<uint16_t>(rows * cols);
    simt::launch(static_cast<unsigned>(count), kUnpackThreads, static_cast<unsigned>(seed),
                 [&, rows = rows, cols = cols] {
                   kernel(units.get(), scales.get(), rows, cols, weight.get());
                 });
    driver::write(weight.get(), rows * cols);
  }
}
