// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes y to stdout.
//   case    int64 rows, cols, tokens, bfloat16, has_bias, seed, multiprocessors, shared_bytes,
//           plan[6], value type, group, words of the stream; the weight (weight.h); uint16
//           x[tokens * stride], stride = cols rounded up to a multiple of 8; uint16 bias[rows] if
//           it has one
//           plan: the numbers of LinearPlan in their order, or -1 first to let the host plan for a
//           GPU with these multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#include <cstring>

#include "cuda/hybrid_units/linear.cuh"
#include "emulator/hybrid_units/weight.h"
#include "emulator/sparse_24/emulated.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::hybrid_units;

template <class Shape, class Values>
Compiled emulated_in() {
  if constexpr (sparse_24::is_emulated(Shape::kInfo, Values::kLayout)) {
    return compiled_in<Shape, Values>();
  } else {
    return {};
  }
}

template <class Values>
Compiled emulated(int shape) {
#define FS_EMULATED(tokens, row_units, warps) \
  emulated_in<sparse_24::Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_HYBRID_UNITS_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return compiled[shape];
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[17];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], seed = header[5];
    const Gpu gpu{static_cast<int>(header[6]), header[7], 8, 9};
    int numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    const UnitLayout unit{static_cast<ValueType>(header[14]), static_cast<int>(header[15])};
    const int dense = dense_parts(header[16] * 4, rows, cols, unit);
    LinearPlan plan{numbers[0], numbers[1], numbers[2], numbers[3],
                    numbers[4], numbers[5], unit,       dense};
    if (plan.shape < 0) plan = hybrid_units::plan_linear(rows, cols, tokens, gpu, unit, dense);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    Weight weight;
    weight.read(rows, cols, unit, header[16]);
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(header[4] ? rows : 0);
    const Compiled compiled = sparse_24::with_values(
        unit, [&](auto values) { return emulated<decltype(values)>(plan.shape); });
    const auto kernel = header[3] ? compiled.bfloat16 : compiled.float16;
    if (!kernel) {
      std::fprintf(stderr, "shape %d is not emulated for these values\n", plan.shape);
      return 1;
    }
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows));
    std::memset(arrivals.get(), 0, plan.arrivals(rows) * sizeof(uint32_t));
    Arguments arguments{};
    arguments.units = weight.units.get();
    arguments.offsets = weight.offsets.get();
    arguments.scales = weight.scales.get();
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = header[4] ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const mma_units::Cut cut = cut_of(plan, rows, cols, seed % 2 == 1);
    const simt::UsedByLastKernel used[] = {
        {x.get(), static_cast<size_t>(tokens * stride)},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(rows))},
        {arrivals.get(), static_cast<size_t>(plan.arrivals(rows))}};
    simt::launch(plan.blocks, plan.threads(), plan.shared_bytes(), static_cast<unsigned>(seed),
                 [&] { kernel(arguments, cut); });
    for (int64_t i = 0; i < plan.arrivals(rows); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
