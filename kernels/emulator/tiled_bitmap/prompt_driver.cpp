// SPDX-License-Identifier: Apache-2.0
// Multiplies int8 by int8 for many tokens: the kernels that quantize x, unpack int8 values and
// scale results, with a plain product of bytes instead of the library's. Cases and answers are
// those of linear_driver.cpp; the plan is not used.
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/mma_units/scale_sums.cuh"
#include "cuda/tiled_bitmap/codes_of_x.cuh"
#include "cuda/tiled_bitmap/units_grid.h"
#include "cuda/tiled_bitmap/unpack_codes.cuh"
#include "emulator/driver.h"

using namespace flashsparse;
using namespace flashsparse::tiled_bitmap;

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[18];
  while (driver::read_header(header)) {
    const int64_t rows = header[0], cols = header[1], tokens = header[2], lines = header[3];
    const bool bfloat16 = header[4], has_bias = header[5];
    const unsigned seed = static_cast<unsigned>(header[6]);
    const int64_t x_stride = (cols + 7) / 8 * 8, stride = mma_units::quantised_stride(cols);
    const auto offsets = driver::read<int32_t>(units(rows, cols) + 1);
    const auto weight = driver::read<uint32_t>(lines * kLineWords);
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const auto bias = driver::read<uint16_t>(has_bias ? rows : 0);
    const auto scales = driver::read<float>(rows);

    const auto x_codes = driver::device_array<int8_t>(tokens * stride);
    const auto x_scales = driver::device_array<float>(tokens);
    const auto x_sums = driver::device_array<uint32_t>(tokens);
    const auto quantise = bfloat16 ? mma_units::quantise_x_kernel<BFloat16, CodesOfX>
                                   : mma_units::quantise_x_kernel<Float16, CodesOfX>;
    simt::launch(tokens, mma_units::kQuantiseThreads, seed, [&] {
      quantise(x.get(), static_cast<int>(x_stride), reinterpret_cast<uint4*>(x_codes.get()),
               x_scales.get(), x_sums.get());
    });

    const int64_t padded = unit_rows(rows) * kUnitRows;
    const auto codes = driver::device_array<int8_t>(padded * stride);
    std::memset(codes.get(), 0x55, padded * stride);  // all of it has to be written
    simt::launch(blocks_of(rows, cols, kUnpackWarps), kUnpackThreads, seed, [&] {
      unpack_codes_kernel(weight.get(), static_cast<uint32_t>(lines), offsets.get(), rows, cols,
                          stride, reinterpret_cast<unsigned char*>(codes.get()));
    });

    const auto sums = driver::device_array<int32_t>(tokens * padded);
    for (int64_t i = 0; i < tokens * padded; ++i) {
      sums[i] = 0;
      for (int64_t col = 0; col < stride; ++col) {
        sums[i] += x_codes[i / padded * stride + col] * codes[i % padded * stride + col];
      }
    }

    const auto y = driver::device_array<uint16_t>(tokens * rows);
    const mma_units::SumsToScale to_scale{reinterpret_cast<const uint32_t*>(sums.get()),
                                          padded,
                                          scales.get(),
                                          x_scales.get(),
                                          has_bias ? bias.get() : nullptr,
                                          y.get(),
                                          rows,
                                          static_cast<int>(rows),
                                          tokens,
                                          false};
    const auto scale = bfloat16 ? mma_units::scale_sums_kernel<BFloat16, int32_t>
                                : mma_units::scale_sums_kernel<Float16, int32_t>;
    simt::launch(mma_units::scale_blocks(to_scale.rows, tokens), mma_units::kScaleThreads, seed,
                 [&] { scale(to_scale); });
    driver::write(y.get(), tokens * rows);
  }
}
