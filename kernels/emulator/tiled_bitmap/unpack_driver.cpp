// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin (read_tiled_bitmap_case) and writes the weights
// to stdout: uint16 weight[rows * cols]. Int8 values (ITEM_BYTES=1) become bfloat16, by the scale
// 2^-(row modulo 5).
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
    const auto scales = device_array<float>(given->rows);
    for (int64_t row = 0; row < given->rows; ++row) scales[row] = 1.0f / (1 << row % 5);
    const auto kernel = item_bytes() == 2 ? unpack_kernel<ValueItems>
                                          : unpack_kernel<CodeItems<flashsparse::BFloat16>>;
    simt::launch(blocks_of(given->rows, given->cols, kUnpackWarps), kUnpackThreads, given->seed,
                 [&] {
                   kernel(given->packed.get(), given->num_lines, given->offsets.get(), scales.get(),
                          given->rows, given->cols, weight.get());
                 });
    write(weight.get(), given->rows * given->cols);
  }
}
