// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, seed, bfloat16, value type, group, words of the stream; the weight
//           (weight.h)
//   answer  uint16 weight[rows * cols]
#include <cstdint>

#include "cuda/hybrid_units/unpack.cuh"
#include "emulator/hybrid_units/weight.h"

using namespace flashsparse::hybrid_units;

int main() {
  int64_t header[7];
  while (driver::read_header(header)) {
    const auto [rows, cols, seed, bfloat16, type, group, words] = header;
    const UnitLayout unit{static_cast<flashsparse::ValueType>(type), static_cast<int>(group)};
    Weight packed;
    packed.read(rows, cols, unit, words);
    const UnpackKernel kernel = flashsparse::hybrid_units::compiled_unpack(unit, bfloat16);
    const auto weight = driver::device_array<uint16_t>(rows * cols);
    simt::launch(static_cast<unsigned>(unit_rows(rows) * unit_cols(cols)), kUnpackThreads,
                 static_cast<unsigned>(seed), [&, rows = rows, cols = cols] {
                   kernel(packed.units.get(), packed.offsets.get(), packed.scales.get(), rows, cols,
                          weight.get());
                 });
    driver::write(weight.get(), rows * cols);
  }
}
