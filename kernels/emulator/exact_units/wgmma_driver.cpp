// SPDX-License-Identifier: Apache-2.0
// Runs the wgmma kernel over every case on stdin and writes y to stdout.
//   case    as that of linear_driver.cpp, with the five numbers of a WgmmaPlan
//   answer  uint16 y[tokens * rows]
#include "cuda/exact_units/wgmma.cuh"
#include "emulator/exact_units/weight.h"
#include "emulator/wgmma_product.h"

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
    WgmmaArguments arguments{};
    arguments.units = weight.units.get();
    arguments.scales = weight.scales.get();
    arguments.exceptions = weight.exceptions();
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = header[3] ? bias.get() : nullptr;
    arguments.weight_stages = plan.weight_stages();
    const WgmmaCompiled kernel =
        plan.kind == Kind::kDense ? compiled<Kind::kDense>(plan) : compiled<Kind::k24>(plan);
    run_wgmma(kernel, arguments, plan, {x.get(), tokens, cols, stride, plan.copied_tokens()}, rows,
              cols, seed);
  }
}
