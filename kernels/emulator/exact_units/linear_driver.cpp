// SPDX-License-Identifier: Apache-2.0
// Runs the linear kernel over every case on stdin and writes y to stdout.
//   case    int64 rows, cols, tokens, has_bias, seed, multiprocessors, shared_bytes, plan[6],
//           slots of a unit, Kind, room of the list; the weight (weight.h); uint16 x[tokens *
//           stride], stride = cols rounded up to a multiple of 8; uint16 bias[rows] if it has one
//           plan: the numbers of LinearPlan in their order, or -1 first to let the host plan for a
//           GPU with these multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#include <cstring>

#include "cuda/exact_units/linear.cuh"
#include "emulator/exact_units/weight.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::exact_units;

template <Kind kind>
Compiled compiled(const LinearPlan& plan) {
  switch (plan.info().tokens) {
    case 8:
      return compiled_linear<8, kind>()[plan.shape];
    case 16:
      return compiled_linear<16, kind>()[plan.shape];
    case 32:
      return compiled_linear<32, kind>()[plan.shape];
    default:
      return compiled_linear<64, kind>()[plan.shape];
  }
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[16];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], seed = header[4];
    const Gpu gpu{static_cast<int>(header[5]), header[6], 8, 9};
    int numbers[7];
    for (int i = 0; i < 7; ++i) numbers[i] = static_cast<int>(header[7 + i]);
    LinearPlan plan{numbers[0], numbers[1], numbers[2], numbers[3],
                    numbers[4], numbers[5], numbers[6], static_cast<Kind>(header[14])};
    if (plan.shape < 0) plan = plan_linear(rows, cols, tokens, gpu, plan.kind, plan.unit_slots);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    Weight weight;
    weight.read(rows, cols, plan.kind, plan.unit_slots, header[15]);
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(header[3] ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows));
    std::memset(arrivals.get(), 0, plan.arrivals(rows) * sizeof(uint32_t));
    Arguments arguments{};
    arguments.units = weight.units.get();
    arguments.scales = weight.scales.get();
    arguments.exceptions = weight.exceptions();
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = header[3] ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const mma_units::Cut cut = cut_of(plan, rows, cols, seed % 2 == 1);
    const Compiled kernel =
        plan.kind == Kind::kDense ? compiled<Kind::kDense>(plan) : compiled<Kind::k24>(plan);
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
