// SPDX-License-Identifier: Apache-2.0
// Runs the pack kernels over every case on stdin and writes their results to stdout.
//   case    int64 rows, cols, shift, seed; uint16 weight[rows * cols], which the kernels find
//           `shift` elements past an aligned address; int8 values as float16 if ITEM_BYTES=1
//   answer  int64 lines; int32 offsets[units + 1]; uint32 packed[lines][32]
#include <cstdint>

#include "cuda/tiled_bitmap/pack.cuh"
#include "cuda/tiled_bitmap/units_grid.h"
#include "emulator/offsets.h"
#include "emulator/tiled_bitmap/case.h"

using namespace flashsparse::tiled_bitmap;
using namespace driver;

int main(int argc, char** argv) {
  const Counting counting(argc, argv);
  int64_t header[4];
  while (read_header(header)) {
    const int64_t rows = header[0], cols = header[1], shift = header[2];
    const unsigned seed = static_cast<unsigned>(header[3]);
    const int64_t parts = units(rows, cols);
    const unsigned blocks = blocks_of(rows, cols, kPackWarps);
    const auto storage = device_array<uint16_t>(shift + rows * cols);
    uint16_t* const weight = storage.get() + shift;
    read(weight, rows * cols);
    const auto lengths = device_array<int32_t>(parts);
    const bool has_codes = item_bytes() == 1;
    const auto count =
        has_codes ? count_kernel<CodeItems<flashsparse::Float16>> : count_kernel<ValueItems>;
    const auto pack =
        has_codes ? pack_kernel<CodeItems<flashsparse::Float16>> : pack_kernel<ValueItems>;
    simt::launch(blocks, kPackThreads, seed, [&] { count(weight, rows, cols, lengths.get()); });
    const SummedOffsets summed = sum_offsets(lengths.get(), parts, seed);
    const auto packed = device_array<uint32_t>(summed.total * kLineWords);
    simt::launch(blocks, kPackThreads, seed,
                 [&] { pack(weight, rows, cols, summed.offsets.get(), packed.get()); });
    write(&summed.total, 1);
    write(summed.offsets.get(), parts + 1);
    write(packed.get(), summed.total * kLineWords);
  }
}
