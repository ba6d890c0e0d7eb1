// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin (case.h) and writes the weights to stdout, as
// bits: uint16 or uint32 [rows][cols].
#include <cstring>
#include <type_traits>

#include "cuda/nm_vector/unpack.cuh"
#include "emulator/nm_vector/case.h"

int main(int argc, char** argv) {
  using namespace flashsparse::nm_vector;
  const driver::Counting counting(argc, argv);
  while (const auto given = driver::read_nm_vector_case()) {
    const int64_t rows = given->rows, cols = given->cols;
    const auto tiles = UnpackTiles::of(given->pattern, cols);
    const auto extent = given->extent();
    with_values(given->values.get(), given->type, given->scales.get(), given->group, extent.kept,
                cols, given->dtype, [&](const auto& values) {
                  using Value = typename std::decay_t<decltype(values)>::Value;
                  const auto weight = driver::device_array<Value>(rows * cols);
                  std::memset(weight.get(), 0xff, rows * cols * sizeof(Value));
                  simt::launch(static_cast<unsigned>(tiles.count(rows)), kUnpackThreads,
                               tiles.shared_bytes(extent, sizeof(Value)), given->seed, [&] {
                                 unpack_kernel(values, given->index.get(), extent, tiles, rows,
                                               static_cast<int>(cols), weight.get());
                               });
                  driver::write(weight.get(), rows * cols);
                });
  }
}
