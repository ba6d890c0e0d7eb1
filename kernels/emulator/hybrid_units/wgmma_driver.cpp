// SPDX-License-Identifier: Apache-2.0
// Runs the wgmma kernel over every case on stdin and writes y to stdout.
//   case    as that of linear_driver.cpp, with the five numbers of a WgmmaPlan
//   answer  uint16 y[tokens * rows]
#include "cuda/hybrid_units/wgmma.cuh"
#include "emulator/hybrid_units/weight.h"
#include "emulator/wgmma_product.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::hybrid_units;

// Native values, fp8, and int4 by 64 columns in all their shapes; of the others that of 64 tokens
// and two warpgroups: all of them would take a minute to compile.
template <class Type, class Values, int tokens, int groups, int bits>
constexpr auto emulated_in() -> decltype(WgmmaCompiled::float16) {
  constexpr UnitLayout kLayout = Values::kLayout;
  constexpr bool kAll =
      kLayout.type == ValueType::kNative || kLayout.type == ValueType::kFp8 || kLayout.group == 64;
  if constexpr (kAll || (tokens == 64 && groups == 2)) {
    return compiled_wgmma_kernel<Type, Values, tokens, groups, bits>();
  } else {
    return nullptr;
  }
}

template <class Type, class Values>
auto emulated(int shape) -> decltype(WgmmaCompiled::float16) {
#define FS_EMULATED(tokens, groups, bits) emulated_in<Type, Values, tokens, groups, bits>(),
  constexpr decltype(WgmmaCompiled::float16) all[] = {FS_HYBRID_UNITS_WGMMA_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return all[shape];
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[16];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], seed = header[5];
    const Gpu gpu{static_cast<int>(header[6]), header[7], 9};
    int numbers[5];
    for (int i = 0; i < 5; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    const UnitLayout unit{static_cast<ValueType>(header[13]), static_cast<int>(header[14])};
    const int dense = dense_parts(header[15] * 4, rows, cols, unit);
    WgmmaPlan plan{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], unit, dense};
    if (plan.shape < 0) plan = hybrid_units::plan_wgmma(rows, cols, tokens, gpu, unit, dense);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    Weight weight;
    weight.read(rows, cols, unit, header[15]);
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(header[4] ? rows : 0);
    const auto kernel = sparse_24::with_values(unit, [&](auto values) {
      using Values = decltype(values);
      return header[3] ? emulated<BFloat16, Values>(plan.shape)
                       : emulated<Float16, Values>(plan.shape);
    });
    if (!kernel) {
      std::fprintf(stderr, "shape %d is not emulated for these values\n", plan.shape);
      return 1;
    }
    WgmmaArguments arguments{};
    arguments.units = weight.units.get();
    arguments.offsets = weight.offsets.get();
    arguments.scales = unit.has_row_scales() ? weight.scales.get() : nullptr;
    arguments.bias = header[4] ? bias.get() : nullptr;
    run_wgmma(kernel, arguments, plan, {x.get(), tokens, cols, stride, plan.copied_tokens()}, rows,
              cols, seed);
  }
}
