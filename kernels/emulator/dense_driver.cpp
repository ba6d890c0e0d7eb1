// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of dense layers over every case on stdin and writes the results to stdout.
//   case    int64 gemv, rows, cols, tokens, bfloat16, shape, split, has_bias, weight_offset,
//           weight_stride, seed
//           (shape -1: as the host plans it for `split` multiprocessors; weight_offset: elements
//           from a 64-byte boundary to the weight); uint16 weight[weight_offset + (rows - 1) *
//           weight_stride + cols]; uint16 x[tokens][cols to a multiple of 8]; uint16 bias[rows] if
//           has_bias
//   answer  uint16 y[tokens][rows]
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/dense/flat_gemm.cuh"
#include "cuda/dense/gemv.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::dense;

void run_flat(const Arguments& dense, FlatPlan plan, bool bfloat16, int64_t seed) {
  const CompiledFlat& compiled = kCompiledFlat[plan.shape];
  const auto partials = driver::unwritten<float>(plan.partial_floats(dense.rows));
  const int64_t row_blocks = plan.row_blocks(dense.rows);
  const auto arrivals = driver::device_array<uint32_t>(row_blocks);
  std::memset(arrivals.get(), 0, row_blocks * sizeof(uint32_t));
  const FlatArguments arguments{dense, partials.get(), arrivals.get()};
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const simt::dim3 grid(static_cast<unsigned>(row_blocks), plan.split);
  simt::launch(grid, compiled.threads, compiled.shared_bytes, seed, [&] { kernel(arguments); });
  for (int64_t i = 0; i < row_blocks; ++i) {
    if (arrivals[i] != 0) std::abort();  // must be reset
  }
}

void run_gemv(const Arguments& arguments, int shape, bool bfloat16, int64_t seed) {
  const CompiledGemv& compiled = kCompiledGemv[shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const int rows = kGemvShapes[shape].rows();
  simt::launch((arguments.rows + rows - 1) / rows, compiled.threads, compiled.shared_bytes, seed,
               [&] { kernel(arguments); });
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[11];
  while (driver::read_header(header)) {
    const auto [gemv, rows, cols, tokens, bfloat16, shape, split, has_bias, offset, stride, seed] =
        header;
    const int64_t x_stride = (cols + kChunk - 1) / kChunk * kChunk;
    const auto weight = driver::read<uint16_t>(offset + (rows - 1) * stride + cols);
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto y = driver::unwritten<uint16_t>(tokens * rows);

    Arguments arguments;
    arguments.x = x.get();
    arguments.x_stride = static_cast<int>(x_stride);
    arguments.weight = weight.get() + offset;
    arguments.weight_stride = static_cast<int>(stride);
    arguments.bias = has_bias ? bias.get() : nullptr;
    arguments.y = y.get();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    const bool aligned = offset % kChunk == 0 && stride % kChunk == 0 && cols % kChunk == 0;
    const Gpu gpu{static_cast<int>(split), 227 << 10};  // for plans of the host
    if (gemv) {
      const int planned = plan_gemv(rows, tokens, aligned, gpu.multiprocessors);
      run_gemv(arguments, shape < 0 ? planned : static_cast<int>(shape), bfloat16, seed);
    } else {
      const FlatPlan planned = plan_flat_gemm(rows, cols, tokens, aligned, gpu);
      const FlatPlan given{static_cast<int>(shape), static_cast<int>(split)};
      run_flat(arguments, shape < 0 ? planned : given, bfloat16, seed);
    }
    driver::write(y.get(), tokens * rows);
  }
}
