// SPDX-License-Identifier: Apache-2.0
// Runs the validate kernel over every case on stdin (read_tiled_csl_case) and writes its verdicts
// to stdout: int32 verdicts[tiles].
#include <cstdint>

#include "cuda/tiled_csl/validate.cuh"
#include "emulator/tiled_csl/case.h"

using namespace flashsparse::tiled_csl;
using namespace driver;

int main() {
  while (const auto packed = read_tiled_csl_case()) {
    const auto verdicts = device_array<int32_t>(packed->tiles);
    simt::launch(packed->tiles, kValidateThreads, packed->seed, [&] {
      validate_kernel(packed->words.get(), static_cast<int32_t>(packed->num_words),
                      packed->offsets.get(), packed->rows, packed->cols, verdicts.get());
    });
    write(verdicts.get(), packed->tiles);
  }
}
