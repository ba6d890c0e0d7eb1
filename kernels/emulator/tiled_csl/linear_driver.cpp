// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes the results to stdout.
//   case    int64 rows, cols, tokens, num_words, bfloat16, shape, blocks, has_bias, seed
//           (shape -1: as plan_linear decides for a Hopper of `blocks` multiprocessors, -2: for
//           another GPU);
//           int32 offsets[tiles + 1]; uint32 words[num_words]; uint16 x[tokens][cols to a multiple
//           of 64]; uint16 bias[rows] if has_bias
//   answer  uint16 y[tokens][rows]
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/tiled_csl/linear.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::tiled_csl;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[9];
  while (driver::read_header(header)) {
    const auto [rows, cols, tokens, num_words, bfloat16, shape, blocks, has_bias, seed] = header;
    LinearPlan plan{static_cast<int>(shape), static_cast<int>(blocks)};
    if (shape < 0) {
      const Gpu gpu{static_cast<int>(blocks), 227 << 10, shape == -1 ? 9 : 8};
      plan = plan_linear(rows, cols, tokens, num_words, gpu);
    }
    const linear::Compiled<Words>& compiled = kCompiledLinear[plan.shape];
    const int64_t tiles = tile_rows(rows) * tile_cols(cols), x_stride = tile_cols(cols) * kTileCols;
    const auto offsets = driver::read<int32_t>(tiles + 1);
    const auto words = driver::read<uint32_t>(num_words);
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats());
    const auto arrivals = driver::device_array<uint32_t>(tile_rows(rows));
    std::memset(arrivals.get(), 0, tile_rows(rows) * sizeof(uint32_t));

    const Words weight{words.get(), offsets.get()};
    linear::Arguments arguments;
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(x_stride);
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    arguments.tile_rows = static_cast<int>(tile_rows(rows));
    arguments.tile_cols = static_cast<int>(tile_cols(cols));
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    simt::launch(plan.blocks, compiled.threads, compiled.shared_bytes, seed,
                 [&] { kernel(weight, arguments); });
    for (int64_t i = 0; i < tile_rows(rows); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
