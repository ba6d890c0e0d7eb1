// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes the results to stdout.
//   case    int64 rows, cols, tokens, n, m, vector_length, value type, bfloat16,
//           has_bias, has_x_scales, seed,
//           multiprocessors, shared_bytes; shape (-1: as plan_linear decides for such a GPU),
//           row_warps, depth_warps, splits, chunk_sections;
//           the weight (case.h); uint16 x[tokens][cols to a multiple of 64];
//           uint16 bias[rows] if has_bias; float32 x_scales[tokens] if has_x_scales
//   answer  uint16 y[tokens][rows]
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/nm_gather/linear.cuh"
#include "emulator/nm_gather/case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::nm_gather;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[18];
  while (driver::read_header(header)) {
    const auto [rows, cols, tokens, n, m, vector_length, value_type, bfloat16, has_bias,
                has_x_scales, seed, multiprocessors, shared_bytes, shape, row_warps, depth_warps,
                splits, chunk_sections] = header;
    const driver::NmGatherWeight packed(n, m, vector_length, value_type, rows, cols);
    const int64_t x_stride = (cols + 63) / 64 * 64;
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto x_scales = driver::read<float>(has_x_scales ? tokens : 0);

    const Gpu gpu{static_cast<int>(multiprocessors), shared_bytes};
    Plan plan{static_cast<int>(shape), static_cast<int>(row_warps), static_cast<int>(depth_warps),
              static_cast<int>(splits), static_cast<int>(chunk_sections)};
    if (shape < 0) plan = plan_linear(packed.layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(packed.layout, rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", wrong);
      return 1;
    }
    const int64_t row_blocks = plan.row_blocks(packed.layout, rows);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(packed.layout, rows));
    const auto arrivals = driver::device_array<uint32_t>(row_blocks);
    std::memset(arrivals.get(), 0, row_blocks * sizeof(uint32_t));

    const Weight weight = weight_of(packed.layout, cols, packed.stored());
    Arguments arguments{};
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(x_stride);
    arguments.x_scales = has_x_scales ? x_scales.get() : nullptr;
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.tokens = static_cast<int>(tokens);
    fill(packed.layout, rows, cols, plan, arguments);
    const Compiled kernels = compiled(plan.shape, packed.layout.value_type);
    const simt::UsedByLastKernel used[] = {
        {x.get(), static_cast<size_t>(tokens * x_stride)},
        {x_scales.get(), static_cast<size_t>(has_x_scales ? tokens : 0)},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(packed.layout, rows))},
        {arrivals.get(), static_cast<size_t>(row_blocks)}};
    const auto kernel = bfloat16 ? kernels.bfloat16 : kernels.float16;
    simt::launch({static_cast<unsigned>(row_blocks), static_cast<unsigned>(plan.splits)},
                 plan.threads(), plan.shared_bytes(packed.layout, cols), seed,
                 [&] { kernel(weight, arguments); });
    for (int64_t i = 0; i < row_blocks; ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
