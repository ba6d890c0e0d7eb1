// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, n, m, vector_length, value type, bfloat16, seed, blocks of units;
//           the weight (case.h)
//   answer  uint16 weight[rows][cols]
#include <cstdint>
#include <cstring>

#include "cuda/nm_gather/unpack.cuh"
#include "emulator/nm_gather/case.h"

int main(int argc, char** argv) {
  using namespace flashsparse::nm_gather;
  const driver::Counting counting(argc, argv);
  int64_t header[9];
  while (driver::read_header(header)) {
    const auto [rows, cols, n, m, vector_length, value_type, bfloat16, seed, blocks] = header;
    const driver::NmGatherWeight packed(n, m, vector_length, value_type, rows, cols);
    const Layout& layout = packed.layout;
    const Weight weight = weight_of(layout, cols, packed.stored());
    const auto dense = driver::device_array<uint16_t>(rows * cols);
    std::memset(dense.get(), 0xff, rows * cols * sizeof(uint16_t));
    const auto kernel = unpack_kernel_of(layout.value_type, bfloat16);
    const auto panels = static_cast<unsigned>(ceil_div(cols, layout.panel_columns));
    simt::launch({panels, static_cast<unsigned>(blocks)}, kUnpackThreads,
                 (layout.unit_rows * layout.panel_columns * 2 + 15) / 16 * 16, seed, [&] {
                   kernel(weight, layout.unit_rows, static_cast<int>(layout.units(rows)), rows,
                          cols, dense.get());
                 });
    driver::write(dense.get(), rows * cols);
  }
}
