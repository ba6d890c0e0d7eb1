// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers of sparse_24's wgmma kernel: a case on stdin, its launch, and y on stdout.
//   case    int64 rows, cols, tokens, bfloat16, has_bias, seed, multiprocessors, shared_bytes,
//           plan[5], value type, group, has_x_scales; int32 units; float32 scales[rows] if rows
//           have them; uint16 x[tokens * stride], stride = cols rounded up to a multiple of 8;
//           uint16 bias[rows] if it has one; float32 x_scales[tokens] if it has them, for 16-bit
//           x that holds quantized values
//           plan: the numbers of WgmmaPlan in their order, or -1 first to let the host plan for a
//           GPU with these multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#pragma once
#include <cstdint>

#include "cuda/sparse_24/wgmma.cuh"
#include "emulator/driver.h"
#include "emulator/wgmma_product.h"

namespace flashsparse::sparse_24 {

// The kernel in a shape, or null where the plan's header has no such shape.
template <class Type, class Operand, int tokens, int groups, int high = 1>
constexpr auto wgmma_kernel_in() -> decltype(WgmmaCompiled::float16) {
  constexpr bool kIsListed = [] {
    for (const WgmmaShapeInfo& each : kWgmmaShapes)
      if (each.tokens == tokens && each.groups == groups && each.high == high) return true;
    return false;
  }();
  if constexpr (kIsListed) {
    return wgmma_kernel<Type, Operand, WgmmaShape<tokens, groups, high>>;
  } else {
    return nullptr;
  }
}

struct WgmmaCase {
  int64_t rows, cols, tokens, seed;
  bool bfloat16;
  WgmmaPlan plan;
  driver::DeviceArray<uint32_t> units{nullptr, &std::free};
  driver::DeviceArray<float> scales{nullptr, &std::free}, x_scales{nullptr, &std::free};
  driver::DeviceArray<uint16_t> x{nullptr, &std::free}, bias{nullptr, &std::free};
  bool has_bias, has_x_scales;

  int64_t stride() const { return (cols + 7) / 8 * 8; }

  // Reads the next case, if there is one; ends the program if its plan breaks a rule.
  bool read(int x_bytes) {
    int64_t header[16];
    if (!driver::read_header(header)) return false;
    rows = header[0], cols = header[1], tokens = header[2], seed = header[5];
    bfloat16 = header[3], has_bias = header[4];
    const Gpu gpu{static_cast<int>(header[6]), header[7], 9};
    int numbers[5];
    for (int i = 0; i < 5; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    const UnitLayout unit{static_cast<ValueType>(header[13]), static_cast<int>(header[14])};
    plan = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], unit, x_bytes};
    if (plan.shape < 0) plan = plan_wgmma(rows, cols, tokens, gpu, unit, x_bytes);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      std::exit(1);
    }
    units = driver::read<uint32_t>(unit_rows(rows) * unit_cols(cols) * unit.words());
    scales = driver::read<float>(unit.has_row_scales() ? rows : 0);
    x = driver::read<uint16_t>(tokens * stride());
    bias = driver::read<uint16_t>(has_bias ? rows : 0);
    has_x_scales = header[15];
    x_scales = driver::read<float>(has_x_scales ? tokens : 0);
    return true;
  }

  void run(void (*kernel)(mma_units::WgmmaArguments, TensorMap), const TiledMatrix& matrix,
           const float* x_scales) const {
    if (!kernel) std::abort();
    mma_units::WgmmaArguments arguments{};
    arguments.units = units.get();
    arguments.scales = plan.unit.has_row_scales() ? scales.get() : nullptr;
    arguments.x_scales = x_scales;
    arguments.bias = has_bias ? bias.get() : nullptr;
    run_wgmma(kernel, arguments, plan, matrix, rows, cols, seed);
  }
};

}  // namespace flashsparse::sparse_24
