// SPDX-License-Identifier: Apache-2.0
// Runs the kernel that quantizes x to e4m3, stored as 16-bit floats, over every case on stdin.
//   case    int64 tokens, cols, bfloat16, seed; uint16 x[tokens * stride], stride = cols rounded up
//           to a multiple of 8
//   answer  uint16 codes[tokens * quantised_stride(cols)]; float scales[tokens]
#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/sparse_24/codes.cuh"
#include "emulator/driver.h"

int main() {
  using namespace flashsparse;
  using sparse_24::WideFp8Codes;
  int64_t header[4];
  while (driver::read_header(header)) {
    const auto& [tokens, cols, bfloat16, seed] = header;
    const int64_t stride = (cols + 7) / 8 * 8, count = tokens * mma_units::quantised_stride(cols);
    const auto x = driver::read<uint16_t>(tokens * stride);
    const auto codes = driver::unwritten<uint16_t>(count);
    const auto scales = driver::unwritten<float>(tokens);
    const auto kernel = bfloat16 ? mma_units::quantise_x_kernel<BFloat16, WideFp8Codes>
                                 : mma_units::quantise_x_kernel<Float16, WideFp8Codes>;
    const simt::UsedByLastKernel used[] = {{x.get(), static_cast<size_t>(tokens * stride)},
                                           {codes.get(), static_cast<size_t>(count)},
                                           {scales.get(), static_cast<size_t>(tokens)}};
    simt::launch(simt::dim3(tokens), mma_units::kQuantiseThreads, seed, [&] {
      kernel(x.get(), static_cast<int>(stride), reinterpret_cast<uint4*>(codes.get()), scales.get(),
             nullptr);
    });
    driver::write(codes.get(), count);
    driver::write(scales.get(), tokens);
  }
}
