// SPDX-License-Identifier: Apache-2.0
// Runs the kernels for many tokens over every case on stdin and writes the results to stdout.
//   case    int64 rows, cols, tokens, n, m, vector_length, value type, bfloat16,
//           has_bias, has_x_scales, seed,
//           multiprocessors, shared_bytes, plan[7]: the numbers of TilesPlan in their order, or -1
//           first to let the host plan for such a GPU;
//           the weight (case.h); uint16 x[tokens][cols to a multiple of 64];
//           uint16 bias[rows] if has_bias; float32 x_scales[tokens] if has_x_scales
//   answer  uint16 y[tokens][rows]
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/nm_gather/tiles.cuh"
#include "cuda/nm_gather/transpose_x.cuh"
#include "emulator/nm_gather/case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::nm_gather;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[20];
  while (driver::read_header(header)) {
    const auto [rows, cols, tokens, n, m, vector_length, value_type, bfloat16, has_bias,
                has_x_scales, seed, multiprocessors, shared_bytes, shape, row_warps, splits,
                x_stages, weight_stages, band, cluster] = header;
    const driver::NmGatherWeight packed(n, m, vector_length, value_type, rows, cols);
    const int64_t x_stride = (cols + 63) / 64 * 64;
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto x_scales = driver::read<float>(has_x_scales ? tokens : 0);

    const Gpu gpu{static_cast<int>(multiprocessors), shared_bytes,
                  shared_bytes >= 227 << 10 ? 9 : 8};
    TilesPlan plan{static_cast<int>(shape),         static_cast<int>(row_warps),
                   static_cast<int>(splits),        static_cast<int>(x_stages),
                   static_cast<int>(weight_stages), static_cast<int>(band),
                   static_cast<int>(cluster)};
    if (shape < 0) plan = plan_tiles(packed.layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(packed.layout, rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", wrong);
      return 1;
    }
    const auto x_tiles = driver::unwritten<uint16_t>(x_tiles_size(packed.layout, cols, tokens));
    const int columns = static_cast<int>(x_tile_columns(packed.layout, cols));
    const int tiles = static_cast<int>(x_tile_count(tokens));
    simt::launch(
        {static_cast<unsigned>(ceil_div(columns, kTransposeColumns)), static_cast<unsigned>(tiles)},
        kTransposeThreads, 0,
        [&] { transpose_x_kernel(x.get(), x_stride, tokens, tiles, columns, x_tiles.get()); });

    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows, tokens));
    const int64_t counters = plan.arrivals(rows, tokens);
    const auto arrivals = driver::device_array<uint32_t>(counters);
    std::memset(arrivals.get(), 0, counters * sizeof(uint32_t));
    const Weight weight = weight_of(packed.layout, cols, packed.stored());
    TileArguments arguments{};
    arguments.x_tiles = x_tiles.get();
    arguments.x_scales = has_x_scales ? x_scales.get() : nullptr;
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    fill(packed.layout, rows, cols, tokens, plan, arguments);
    const CompiledTiles compiled = compiled_tiles(plan.shape, packed.layout.value_type);
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    // As many as run at once, or all if tiles are shared.
    int64_t blocks = plan.blocks(rows, tokens);
    if (plan.splits == 1) blocks = std::min(blocks, multiprocessors);
    const simt::UsedByLastKernel used[] = {
        {x_tiles.get(), static_cast<size_t>(x_tiles_size(packed.layout, cols, tokens))},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(rows, tokens))},
        {arrivals.get(), static_cast<size_t>(counters)}};
    simt::launch_clusters(plan.cluster, static_cast<unsigned>(blocks), plan.threads(),
                          plan.shared_bytes(packed.layout), seed,
                          [&] { kernel(weight, arguments); });
    if (std::any_of(arrivals.get(), arrivals.get() + counters, [](uint32_t n) { return n != 0; }))
      std::abort();  // must be reset
    driver::write(y.get(), tokens * rows);
  }
}
