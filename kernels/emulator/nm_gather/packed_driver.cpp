// SPDX-License-Identifier: Apache-2.0
// Transposes x and runs the packed kernel over every case on stdin; writes the results to stdout.
//   case    int64 rows, cols, tokens, n, m, vector_length, value type, bfloat16,
//           has_bias, 0 (native values have no x_scales), seed,
//           multiprocessors; shape (-1: as plan_packed decides for such a GPU), band;
//           the weight (case.h); uint16 x[tokens][cols to a multiple of 64];
//           uint16 bias[rows] if has_bias
//   answer  uint16 y[tokens][rows]
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/nm_gather/packed.cuh"
#include "cuda/nm_gather/transpose_x.cuh"
#include "emulator/nm_gather/case.h"

int main(int argc, char** argv) {
  using namespace flashsparse;
  using namespace flashsparse::nm_gather;
  const driver::Counting counting(argc, argv);
  int64_t header[14];
  while (driver::read_header(header)) {
    const auto [rows, cols, tokens, n, m, vector_length, value_type, bfloat16, has_bias,
                has_x_scales, seed, multiprocessors, shape, band] = header;
    if (has_x_scales) std::abort();
    const driver::NmGatherWeight packed(n, m, vector_length, value_type, rows, cols);
    const int64_t x_stride = (cols + 63) / 64 * 64;
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);

    const Gpu gpu{static_cast<int>(multiprocessors), 227 << 10, 9};
    PackedPlan plan{static_cast<int>(shape), static_cast<int>(band)};
    if (shape < 0) plan = plan_packed(packed.layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(packed.layout, rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", wrong);
      return 1;
    }
    const auto columns = static_cast<int>(x_tile_columns(packed.layout, cols));
    const auto x_tiles = driver::device_array<uint16_t>(x_tiles_size(packed.layout, cols, tokens));
    const auto tiles_of_x = static_cast<int>(x_tile_count(tokens));
    simt::launch({static_cast<unsigned>(ceil_div(columns, kTransposeColumns)), 1},
                 kTransposeThreads, 0, 0, [&] {
                   transpose_x_kernel(x.get(), static_cast<int>(x_stride), static_cast<int>(tokens),
                                      tiles_of_x, columns, x_tiles.get());
                 });

    const auto y = driver::device_array<uint16_t>(tokens * rows);
    std::memset(y.get(), 0xff, tokens * rows * sizeof(uint16_t));
    const Weight weight = weight_of(packed.layout, cols, packed.stored());
    PackedArguments arguments = packed_arguments(packed.layout, rows, cols, tokens, plan);
    arguments.x_tiles = x_tiles.get();
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    const PackedCompiled& compiled = kPackedCompiled[plan.shape];
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    const simt::UsedByLastKernel used[] = {
        {x_tiles.get(), static_cast<size_t>(x_tiles_size(packed.layout, cols, tokens))},
        {y.get(), static_cast<size_t>(tokens * rows)}};
    simt::launch(std::min<int64_t>(plan.tiles(rows, tokens), multiprocessors), compiled.threads,
                 compiled.shared_bytes, seed, [&] { kernel(weight, arguments); });
    driver::write(y.get(), tokens * rows);
  }
}
