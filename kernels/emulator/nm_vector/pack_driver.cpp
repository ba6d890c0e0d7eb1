// SPDX-License-Identifier: Apache-2.0
// Runs the pack kernel over every case on stdin and writes its results to stdout.
//   case    int64 rows, cols, n, m, vector_length, bytes of a value, shift, seed; the weight
//           [rows * cols], which the kernel finds `shift` elements past an aligned place
//   answer  int64 group, window, columns of the first breach, or -1 three times; values[rows *
//           kept]; uint8 index[groups * index_bytes]
#include <cstdint>
#include <cstring>

#include "cuda/nm_vector/pack.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse::nm_vector;

template <class Value>
void run(const int64_t (&header)[8]) {
  const int64_t rows = header[0], cols = header[1], shift = header[6];
  const Pattern pattern{header[2], header[3], header[4]};
  const int64_t kept = pattern.kept(cols), bytes = pattern.index_bytes(cols);
  const auto tile = PackTile::of(pattern);
  const int64_t tiles = tile.tiles(pattern, rows, cols);
  const auto storage = driver::device_array<Value>(shift + rows * cols);
  Value* const weight = storage.get() + shift;
  driver::read(weight, rows * cols);
  const auto values = driver::device_array<Value>(rows * kept);
  const auto index = driver::device_array<uint8_t>(pattern.groups(rows) * bytes);
  const auto breaches = driver::device_array<int32_t>(tiles);
  simt::launch(static_cast<unsigned>(tiles), kPackThreads, tile.shared_bytes(pattern),
               static_cast<unsigned>(header[7]), [&] {
                 pack_kernel(weight, rows, cols, pattern, tile, values.get(), index.get(),
                             breaches.get());
               });
  const auto first = first_breach(breaches.get(), tile, tiles, tile.across(pattern, cols))
                         .value_or(Breach{-1, -1, -1});
  const int64_t found[] = {first.group, first.window, first.columns};
  driver::write(found, 3);
  driver::write(values.get(), rows * kept);
  driver::write(index.get(), pattern.groups(rows) * bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[8];
  while (driver::read_header(header))
    header[5] == 2 ? run<uint16_t>(header) : run<uint32_t>(header);
}
