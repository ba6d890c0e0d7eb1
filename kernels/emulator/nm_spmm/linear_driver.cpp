// SPDX-License-Identifier: Apache-2.0
// Runs the kernels over every case on stdin and writes the results to stdout.
//   case    int64 rows, cols, tokens, n, m, vector_length, has_bias, seed, multiprocessors,
//           shared_bytes; kernel (-1: as plan_linear decides for such a GPU), splits;
//           float values; uint8 index, columns, packed; float x[tokens][cols];
//           float bias[rows] if has_bias
//   answer  float y[tokens][rows]
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/nm_spmm/linear.cuh"
#include "cuda/nm_spmm/transpose.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::nm_spmm;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[12];
  while (driver::read_header(header)) {
    const auto [rows, cols, tokens, n, m, vector_length, has_bias, seed, multiprocessors,
                shared_bytes, kernel, splits] = header;
    const Layout layout = layout_of(n, m, vector_length);
    const int64_t panels = layout.blocks(rows) * layout.panels(cols);
    const auto values = driver::read<float>(panels * layout.entries * kBlockRows);
    const auto index = driver::read<uint8_t>(panels * layout.groups() * layout.entries);
    const auto columns = driver::read<uint8_t>(panels * layout.capacity);
    const auto packed = driver::read<uint8_t>(panels * layout.groups() * layout.entries);
    const auto x = driver::read<float>(tokens * cols);
    const auto bias = driver::read<float>(has_bias ? rows : 0);

    const Gpu gpu{static_cast<int>(multiprocessors), shared_bytes};
    Plan plan{static_cast<int>(kernel), static_cast<int>(splits)};
    if (kernel < 0) plan = plan_linear(layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(layout, rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", wrong);
      return 1;
    }
    const auto y = driver::unwritten<float>(tokens * rows);
    const auto xt = driver::unwritten<float>(plan.xt_floats(layout, cols, tokens));
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows, tokens));
    const int64_t tiles = plan.tiles(rows, tokens);
    const auto arrivals = driver::device_array<uint32_t>(tiles);
    std::memset(arrivals.get(), 0, tiles * sizeof(uint32_t));

    const int64_t all = layout.panels(cols) * layout.columns, stride = plan.xt_stride(tokens);
    simt::launch({static_cast<unsigned>(ceil_div(all, kTransposeTile)),
                  static_cast<unsigned>(ceil_div(stride, kTransposeTile))},
                 kTransposeThreads, 0, seed,
                 [&] { transpose_kernel(x.get(), tokens, cols, xt.get(), all, stride); });

    const Weight weight =
        weight_of(layout, cols, values.get(), plan.info().packing ? packed.get() : index.get(),
                  columns.get());
    Arguments arguments{};
    arguments.xt = xt.get();
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.tokens = static_cast<int>(tokens);
    fill(layout, plan, arguments);
    const Kernel compiled = kCompiled[plan.kernel];
    simt::launch({static_cast<unsigned>(tiles), static_cast<unsigned>(plan.splits)},
                 plan.info().threads(), plan.shared_bytes(layout), seed,
                 [&] { compiled(weight, arguments); });
    for (int64_t i = 0; i < tiles; ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
