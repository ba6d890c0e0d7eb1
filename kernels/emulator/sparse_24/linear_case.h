// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers of sparse_24's decode kernels: a case on stdin, its launch, and y on
// stdout.
//   case    int64 rows, cols, tokens, bfloat16, has_bias, seed, multiprocessors, shared_bytes,
//           plan[6], value type, group, has_x_scales; int32 units; float scales[rows] if rows
//           have them; uint16 x[tokens * stride], stride = cols rounded up to a multiple of 8;
//           uint16 bias[rows] if it has one; float32 x_scales[tokens] if it has them, for 16-bit
//           x that holds quantized values
//           plan: the numbers of LinearPlan in their order, or -1 first to let the host plan for a
//           GPU with these multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#pragma once
#include <cstdint>
#include <cstring>

#include "cuda/sparse_24/linear_compiled.h"
#include "emulator/driver.h"

namespace flashsparse::sparse_24 {

struct LinearCase {
  int64_t rows, cols, tokens, seed;
  bool bfloat16, has_bias, has_x_scales;
  LinearPlan plan;
  driver::DeviceArray<uint32_t> units{nullptr, &std::free};
  driver::DeviceArray<float> scales{nullptr, &std::free}, x_scales{nullptr, &std::free};
  driver::DeviceArray<uint16_t> x{nullptr, &std::free}, bias{nullptr, &std::free};

  int64_t stride() const { return (cols + 7) / 8 * 8; }

  // Reads the next case, if there is one; ends the program if its plan breaks a rule.
  bool read(int x_bytes) {
    int64_t header[17];
    if (!driver::read_header(header)) return false;
    rows = header[0], cols = header[1], tokens = header[2], seed = header[5];
    bfloat16 = header[3], has_bias = header[4];
    const Gpu gpu{static_cast<int>(header[6]), header[7], 8, 9};
    int numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    const UnitLayout unit{static_cast<ValueType>(header[14]), static_cast<int>(header[15])};
    plan = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], unit, x_bytes};
    if (plan.shape < 0) plan = plan_linear(rows, cols, tokens, gpu, unit, x_bytes);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      std::exit(1);
    }
    units = driver::read<uint32_t>(unit_rows(rows) * unit_cols(cols) * unit.words());
    scales = driver::read<float>(unit.has_row_scales() ? rows : 0);
    x = driver::read<uint16_t>(tokens * stride());
    bias = driver::read<uint16_t>(has_bias ? rows : 0);
    has_x_scales = header[16];
    x_scales = driver::read<float>(has_x_scales ? tokens : 0);
    return true;
  }

  // Runs the kernel on x as the preceding kernel has made it: given, or quantized with scales of
  // tokens.
  void run(const Compiled& compiled, const uint16_t* x_bits, int64_t x_stride,
           const float* x_scales) const {
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    if (!kernel) {
      std::fprintf(stderr, "shape %d is not emulated for these values\n", plan.shape);
      std::exit(1);
    }
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows));
    std::memset(arrivals.get(), 0, plan.arrivals(rows) * sizeof(uint32_t));
    mma_units::Arguments arguments{};
    arguments.units = units.get();
    arguments.scales = scales.get();
    arguments.x_scales = x_scales;
    arguments.x = x_bits;
    arguments.x_stride = static_cast<int>(x_stride);
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const mma_units::Cut cut = cut_of(plan, rows, cols, seed % 2 == 1);
    const simt::UsedByLastKernel used[] = {
        {x_bits, static_cast<size_t>(tokens * x_stride)},
        {x_scales, static_cast<size_t>(x_scales ? tokens : 0)},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(rows))},
        {arrivals.get(), static_cast<size_t>(plan.arrivals(rows))}};
    simt::launch(plan.blocks, plan.threads(), plan.shared_bytes(), seed,
                 [&] { kernel(arguments, cut); });
    for (int64_t i = 0; i < plan.arrivals(rows); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
};

}  // namespace flashsparse::sparse_24
