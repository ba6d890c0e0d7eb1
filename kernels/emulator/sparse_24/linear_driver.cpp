// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes y to stdout.
//   case    int64 rows, cols, tokens, bfloat16, has_bias, seed, multiprocessors, shared_bytes,
//           plan[6], value type, group; int32 units; float scales[rows] if rows have them; uint16
//           x[tokens * stride], the stride being cols up to a multiple of 8; uint16 bias[rows] if
//           it has one plan: the numbers of LinearPlan in their order, or -1 first to let the host
//           plan for a GPU of so many multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#include <cstdint>
#include <cstring>

#include "cuda/sparse_24/linear.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

// Memory that nothing has been written to: NaN in every float type.
template <class T>
auto unwritten(size_t count) {
  auto array = driver::device_array<T>(count);
  std::memset(array.get(), 0xff, count * sizeof(T));
  return array;
}

// Native values, fp8 and int4 by 128 columns in all their shapes, the others where they differ from
// those: all of them would compile for a minute.
template <class Shape, class Values>
Compiled emulated_in() {
  constexpr UnitLayout kUnit = Values::kLayout;
  constexpr bool kAll =
      kUnit.type == ValueType::kNative || kUnit.type == ValueType::kFp8 || kUnit.group == 128;
  constexpr bool kFew = Shape::kTokens == 8 && Shape::kRowUnits == 2;
  constexpr bool kHeldOne = kUnit.group == 32 && Shape::kRowUnits == 4;
  if constexpr (kAll || kFew || kHeldOne) {
    return compiled_in<Shape, Values>();
  } else {
    return {};
  }
}

template <class Values>
Compiled emulated(int shape) {
#define FS_EMULATED(tokens, row_units, warps) \
  emulated_in<Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_SPARSE_24_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return compiled[shape];
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[16];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2];
    const bool bfloat16 = header[3], has_bias = header[4];
    const Gpu gpu{static_cast<int>(header[6]), header[7]};
    int numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    const UnitLayout unit{static_cast<ValueType>(header[14]), static_cast<int>(header[15])};
    LinearPlan plan{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], unit};
    if (plan.shape < 0) plan = plan_linear(rows, cols, tokens, gpu, unit);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto units = driver::read<uint32_t>(unit_rows(rows) * unit_cols(cols) * unit.words());
    const auto scales = driver::read<float>(unit.has_row_scales() ? rows : 0);
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto y = unwritten<uint16_t>(tokens * rows);
    const auto partials = unwritten<float>(plan.partial_floats(rows));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows));
    std::memset(arrivals.get(), 0, plan.arrivals(rows) * sizeof(uint32_t));

    mma_units::Arguments arguments;
    arguments.units = units.get();
    arguments.scales = scales.get();
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const mma_units::Cut cut{plan.row_warps, plan.column_warps, plan.weight_stages, plan.x_stages};
    const Compiled compiled =
        with_values(unit, [&](auto values) { return emulated<decltype(values)>(plan.shape); });
    const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
    if (!kernel) {
      std::fprintf(stderr, "shape %d is not emulated for these values\n", plan.shape);
      return 1;
    }
    simt::launch(plan.blocks, plan.threads(), plan.shared_bytes(), header[5],
                 [&] { kernel(arguments, cut); });
    for (int64_t i = 0; i < plan.arrivals(rows); ++i) {
      if (arrivals[i] != 0) std::abort();  // they must be left as they were found
    }
    driver::write(y.get(), tokens * rows);
  }
}
