// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin (read_tiled_csl_case) and writes the weights to
// stdout: uint16 weight[rows * cols].
#include <cstdint>

#include "cuda/tiled_csl/unpack.cuh"
#include "emulator/tiled_csl/case.h"

using namespace flashsparse::tiled_csl;
using namespace driver;

int main(int argc, char** argv) {
  const Counting counting(argc, argv);
  while (const auto packed = read_tiled_csl_case()) {
    const auto weight = device_array<uint16_t>(packed->rows * packed->cols);
    simt::launch(packed->tiles, kUnpackThreads, packed->seed, [&] {
      unpack_kernel(packed->words.get(), packed->num_words, packed->offsets.get(), packed->rows,
                    packed->cols, weight.get());
    });
    write(weight.get(), packed->rows * packed->cols);
  }
}
