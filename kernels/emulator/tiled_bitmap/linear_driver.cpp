// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes y to stdout.
//   case    int64 rows, cols, tokens, lines, bfloat16, has_bias, seed, multiprocessors,
//           shared_bytes, plan[8], operands; int32 offsets[units + 1]; int32 weight[lines][32];
//           uint16 x[tokens * stride], the stride being cols up to a multiple of 8; uint16
//           bias[rows] if it has one; float scales[rows] if values are int8
//           plan: the numbers of LinearPlan in their order, or -1 first to let the host plan for a
//           GPU with these multiprocessors and bytes of shared memory; operands: number of Operands
//   answer  uint16 y[tokens * rows]
#include <cstdint>
#include <cstring>

#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/tiled_bitmap/codes_of_x.cuh"
#include "cuda/tiled_bitmap/linear.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::tiled_bitmap;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[18];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], lines = header[3];
    const bool bfloat16 = header[4], has_bias = header[5];
    const Gpu gpu{static_cast<int>(header[7]), header[8]};
    const auto operands = static_cast<Operands>(header[17]);
    int numbers[8];
    for (int i = 0; i < 8; ++i) numbers[i] = static_cast<int>(header[9 + i]);
    LinearPlan plan{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                    numbers[5], numbers[6], numbers[7], operands};
    if (plan.shape < 0) plan = plan_linear(rows, cols, lines, tokens, gpu, operands);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto offsets = driver::read<int32_t>(units(rows, cols) + 1);
    const auto weight = driver::read<uint32_t>(lines * kLineWords);
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const bool has_codes = operands != Operands::kNative;
    const auto scales = driver::read<float>(has_codes ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows));
    std::memset(arrivals.get(), 0, plan.arrivals(rows) * sizeof(uint32_t));

    Arguments arguments{};
    arguments.units = weight.get();
    arguments.scales = has_codes ? scales.get() : nullptr;
    arguments.offsets = offsets.get();
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const bool is_rounded = operands == Operands::kRounded;
    const int64_t codes_stride = mma_units::quantised_stride(stride) / 2;
    const auto codes = driver::unwritten<uint16_t>(is_rounded ? tokens * codes_stride : 0);
    const auto x_scales = driver::unwritten<float>(is_rounded ? tokens : 0);
    const auto x_sums = driver::unwritten<uint32_t>(is_rounded ? tokens : 0);
    if (is_rounded) {
      const auto quantise = bfloat16 ? mma_units::quantise_x_kernel<BFloat16, CodesOfX>
                                     : mma_units::quantise_x_kernel<Float16, CodesOfX>;
      simt::launch(tokens, mma_units::kQuantiseThreads, header[6], [&] {
        quantise(x.get(), static_cast<int>(stride), reinterpret_cast<uint4*>(codes.get()),
                 x_scales.get(), x_sums.get());
      });
      arguments.x = codes.get();
      arguments.x_stride = static_cast<int>(codes_stride);
      arguments.x_scales = x_scales.get();
      arguments.x_sums = x_sums.get();
    }
    const Cut cut{{plan, kOrders, rows, cols},
                  static_cast<uint32_t>(plan.scratch_quarters),
                  static_cast<uint32_t>(plan.ring_lines * kLineBytes),
                  plan.is_early == 0};
    const Compiled compiled =
        (operands == Operands::kNative  ? compiled_linear<Operands::kNative, 0, 64>()
         : operands == Operands::kCodes ? compiled_linear<Operands::kCodes, 0, 64>()
                                        : compiled_linear<Operands::kRounded, 0, 64>())[plan.shape];
    const simt::UsedByLastKernel used[] = {
        {x.get(), static_cast<size_t>(tokens * stride)},
        {codes.get(), static_cast<size_t>(is_rounded ? tokens * codes_stride : 0)},
        {x_scales.get(), static_cast<size_t>(is_rounded ? tokens : 0)},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(rows))},
        {arrivals.get(), static_cast<size_t>(plan.arrivals(rows))}};
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    simt::launch(plan.blocks, plan.threads(), plan.shared_bytes(), header[6],
                 [&] { kernel(arguments, cut); });
    for (int64_t i = 0; i < plan.arrivals(rows); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
