// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, seed, slots of a unit, Kind, room of the list; the weight (weight.h)
//   answer  uint16 weight[rows * cols]
#include <cstdint>

#include "cuda/exact_units/unpack.cuh"
#include "emulator/exact_units/weight.h"

using namespace flashsparse::exact_units;

int main() {
  int64_t header[6];
  while (driver::read_header(header)) {
    const auto [rows, cols, seed, unit_slots, number, room] = header;
    const auto kind = static_cast<Kind>(number);
    Weight packed;
    packed.read(rows, cols, kind, unit_slots, room);
    const auto weight = driver::device_array<uint16_t>(rows * cols);
    simt::launch(static_cast<unsigned>(unit_rows(rows) * unit_cols(cols)), kUnpackThreads,
                 static_cast<unsigned>(seed), [&, rows = rows, cols = cols] {
                   const auto kernel = kind == Kind::kDense ? unpack_kernel<Kind::kDense>
                                                            : unpack_kernel<Kind::k24>;
                   kernel(packed.units.get(), packed.scales.get(), packed.exceptions(),
                          static_cast<int>(rows), cols, weight.get());
                 });
    driver::write(weight.get(), rows * cols);
  }
}
