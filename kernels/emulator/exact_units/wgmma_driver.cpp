// SPDX-License-Identifier: Apache-2.0
// Runs the wgmma kernel over every case on stdin and writes y to stdout.
//   case    as that of linear_driver.cpp, with the five numbers of a WgmmaPlan
//   answer  uint16 y[tokens * rows]
#include <cstring>

#include "cuda/exact_units/wgmma.cuh"
#include "emulator/exact_units/weight.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::exact_units;

template <Kind kind>
WgmmaCompiled compiled(const WgmmaPlan& plan) {
  switch (plan.info().tokens) {
    case 32:
      return compiled_wgmma<32, kind>()[plan.shape];
    case 64:
      return compiled_wgmma<64, kind>()[plan.shape];
    case 128:
      return compiled_wgmma<128, kind>()[plan.shape];
    default:
      return compiled_wgmma<256, kind>()[plan.shape];
  }
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[15];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], seed = header[4];
    const Gpu gpu{static_cast<int>(header[5]), header[6], 9};
    int numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = static_cast<int>(header[7 + i]);
    WgmmaPlan plan{numbers[0],
                   numbers[1],
                   numbers[2],
                   numbers[3],
                   numbers[4],
                   numbers[5],
                   static_cast<Kind>(header[13])};
    if (plan.shape < 0) plan = plan_wgmma(rows, cols, tokens, gpu, plan.kind, plan.unit_slots);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    Weight weight;
    weight.read(rows, cols, plan.kind, plan.unit_slots, header[14]);
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(header[3] ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows, tokens));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows, tokens));
    std::memset(arrivals.get(), 0, plan.arrivals(rows, tokens) * sizeof(uint32_t));
    WgmmaArguments arguments{};
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
    arguments.cut(plan);
    arguments.weight_stages = plan.weight_stages();
    const TensorMap map = emulated_map({x.get(), tokens, cols, stride, plan.copied_tokens()});
    const WgmmaCompiled kernel =
        plan.kind == Kind::kDense ? compiled<Kind::kDense>(plan) : compiled<Kind::k24>(plan);
    const simt::UsedByLastKernel used[] = {
        {x.get(), static_cast<size_t>(tokens * stride)},
        {y.get(), static_cast<size_t>(tokens * rows)},
        {partials.get(), static_cast<size_t>(plan.partial_floats(rows, tokens))},
        {arrivals.get(), static_cast<size_t>(plan.arrivals(rows, tokens))}};
    simt::launch_clusters(plan.cluster(), plan.blocks(), plan.threads(), plan.shared_bytes(),
                          static_cast<unsigned>(seed), [&] { kernel(arguments, map); });
    for (int64_t i = 0; i < plan.arrivals(rows, tokens); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
