// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin, as read_tiled_bitmap_case wants it, and writes
// the weights to stdout: uint16 weight[rows * cols].
#include <cstdint>

#include "cuda/tiled_bitmap/units_grid.h"
#include "cuda/tiled_bitmap/unpack.cuh"
#include "emulator/tiled_bitmap/case.h"

using namespace flashsparse::tiled_bitmap;
using namespace driver;

int main(int argc, char** argv) {
  const Counting counting(argc, argv);
  while (const auto given = read_tiled_bitmap_case()) {
    const auto weight = device_array<uint16_t>(given->rows * given->cols);
    simt::launch(blocks_of(given->rows, given->cols, kUnpackWarps), kUnpackThreads, given->seed,
                 [&] {
                   unpack_kernel(given->packed.get(), given->num_lines, given->offsets.get(),
                                 given->rows, given->cols, weight.get());
                 });
    write(weight.get(), given->rows * given->cols);
  }
}
