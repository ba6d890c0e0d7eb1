// SPDX-License-Identifier: Apache-2.0
// Runs the wgmma kernel of tiled_bitmap over every case on stdin and writes y to stdout.
//   case    int64 rows, cols, tokens, bfloat16, has_bias, seed, multiprocessors, shared_bytes,
//           plan[6], lines, operands; int32 unit_offsets[units + 1]; int32
//           weight_packed[lines][32]; uint16 x[tokens * stride], the stride being cols up to a
//           multiple of 8; uint16 bias[rows] if it has one; float scales[rows] if weight_packed has
//           int8 values operands: of Operands; x is quantized here where they are rounded plan: the
//           numbers of WgmmaPlan in their order, or -1 first to let the host plan for a GPU with
//           these multiprocessors and bytes of shared memory
//   answer  uint16 y[tokens * rows]
#include <cstdint>
#include <cstring>

#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/tiled_bitmap/codes_of_x.cuh"
#include "cuda/tiled_bitmap/wgmma.cuh"
#include "cuda/tiled_bitmap/wgmma_dispatch.h"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::tiled_bitmap;

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[16];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], lines = header[14];
    const bool bfloat16 = header[3], has_bias = header[4];
    const auto operands = static_cast<Operands>(header[15]);
    const bool has_scales = operands != Operands::kNative;
    const Gpu gpu{static_cast<int>(header[6]), header[7], 9};
    int numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = static_cast<int>(header[8 + i]);
    WgmmaPlan plan{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    if (plan.shape < 0) plan = plan_wgmma(rows, cols, tokens, lines, gpu, operands);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", rule);
      return 1;
    }
    const int64_t stride = (cols + 7) / 8 * 8;
    const auto offsets = driver::read<int32_t>(units(rows, cols) + 1);
    const auto packed = driver::read<uint32_t>(lines * kLineWords);
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto scales = driver::read<float>(has_scales ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);
    const auto partials = driver::unwritten<float>(plan.partial_floats(rows, tokens));
    const auto arrivals = driver::device_array<uint32_t>(plan.arrivals(rows, tokens));
    std::memset(arrivals.get(), 0, plan.arrivals(rows, tokens) * sizeof(uint32_t));
    WgmmaArguments arguments{};
    arguments.units = packed.get();
    arguments.offsets = offsets.get();
    arguments.scales = has_scales ? scales.get() : nullptr;
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    arguments.cut(plan);
    arguments.ring_lines = plan.ring_lines;
    TiledMatrix read{x.get(), tokens, cols, stride, plan.copied_tokens()};
    const bool rounded = operands == Operands::kRounded;
    const int64_t width = mma_units::quantised_stride(cols) / 2;
    const auto codes = driver::device_array<uint16_t>(rounded ? tokens * width : 0);
    const auto x_scales = driver::device_array<float>(tokens);
    const auto x_sums = driver::device_array<uint32_t>(tokens);
    if (rounded) {
      const auto quantise = bfloat16 ? mma_units::quantise_x_kernel<BFloat16, CodesOfX>
                                     : mma_units::quantise_x_kernel<Float16, CodesOfX>;
      simt::launch(tokens, mma_units::kQuantiseThreads, static_cast<unsigned>(header[5]), [&] {
        quantise(x.get(), static_cast<int>(stride), reinterpret_cast<uint4*>(codes.get()),
                 x_scales.get(), x_sums.get());
      });
      arguments.x_scales = x_scales.get();
      read = {codes.get(), tokens, width, width, plan.copied_tokens()};
    }
    const WgmmaKernel kernel = compiled_wgmma(operands, bfloat16)[plan.shape];
    const TensorMap map = emulated_map(read);
    simt::launch_clusters(plan.cluster(), plan.blocks(), plan.threads(), plan.shared_bytes(),
                          header[5], [&] { kernel(arguments, map); });
    for (int64_t i = 0; i < plan.arrivals(rows, tokens); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(y.get(), tokens * rows);
  }
}
