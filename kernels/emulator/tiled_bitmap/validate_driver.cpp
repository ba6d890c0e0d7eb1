// SPDX-License-Identifier: Apache-2.0
// Runs the validate kernel over every case on stdin (read_tiled_bitmap_case) and writes its
// verdicts to stdout: int32 verdicts[units].
#include <cstdint>

#include "cuda/tiled_bitmap/units_grid.h"
#include "cuda/tiled_bitmap/validate.cuh"
#include "emulator/tiled_bitmap/case.h"

using namespace flashsparse::tiled_bitmap;
using namespace driver;

int main() {
  while (const auto given = read_tiled_bitmap_case()) {
    const auto verdicts = device_array<int32_t>(given->units);
    simt::launch(
        blocks_of(given->rows, given->cols, kValidateWarps), kValidateThreads, given->seed, [&] {
          validate_kernel(given->packed.get(), static_cast<int32_t>(given->num_lines),
                          given->offsets.get(), given->rows, given->cols,
                          flashsparse::tiled_bitmap::items_of_word(item_bytes()), verdicts.get());
        });
    write(verdicts.get(), given->units);
  }
}
