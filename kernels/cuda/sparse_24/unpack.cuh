// SPDX-License-Identifier: Apache-2.0
// Unpacks sparse_24: a block for each unit, a thread for the values of one lane and step.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/spread.cuh"
#include "cuda/sparse_24/values.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

inline constexpr int kUnpackThreads = 32 * kSteps;

// Two quantized values, times their scale.
template <class Type>
__device__ __forceinline__ uint32_t scaled(uint32_t two, float scale) {
  const float low = to_float<Type>(static_cast<uint16_t>(two));
  const float high = to_float<Type>(static_cast<uint16_t>(two >> 16));
  return from_floats<Type>(low * scale, high * scale);
}

// Launch with a block for each unit, and kUnpackThreads threads. `scales` are those of rows, if
// values have them.
template <class Type, class Values>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const uint32_t* units, const float* scales, int64_t rows, int64_t cols,
                  uint16_t* weight) {
  constexpr UnitLayout kUnit = Values::kLayout;
  const int64_t across = unit_cols(cols), unit_row = blockIdx.x / across;
  const int64_t unit_col = blockIdx.x - unit_row * across;
  const int step = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t* const unit = units + int64_t{blockIdx.x} * kUnit.words();
  const int vector = step / kUnit.lane_steps() * 32 + lane;
  uint32_t words[4];
  Values::template widen<Type>(words, load_streaming(reinterpret_cast<const uint4*>(unit) + vector),
                               step % kUnit.lane_steps());
  const uint32_t* const metadata = unit + kUnit.metadata() / 4;
  FS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int unit_line = lane / 4 + i % 2 * 8;
    const int64_t row = unit_row * kUnitRows + unit_line;
    const int64_t col = unit_col * kUnitCols + step * kStepCols + i / 2 * 16 + lane % 4 * 4;
    if (row >= rows || col >= cols) continue;
    if constexpr (kUnit.group > 0) {
      const int scale = step * kStepCols / kUnit.group * kUnitRows + unit_line;
      const uint32_t two = load_readonly(unit + kUnit.scales() / 4 + scale / 2);
      words[i] =
          scaled<Type>(words[i], to_float<Type>(static_cast<uint16_t>(two >> scale % 2 * 16)));
    } else if constexpr (kUnit.has_row_scales()) {
      words[i] = scaled<Type>(words[i], scales[row]);
    }
    const uint2 four = mma_units::spread(words[i], i, metadata, step);
    uint16_t* const place = weight + row * cols + col;
    if (cols % 4 == 0) {
      store_global(reinterpret_cast<uint2*>(place), four);
    } else {
      FS_UNROLL
      for (int e = 0; e < 4; ++e) {
        const uint32_t half = e < 2 ? four.x : four.y;
        if (col + e < cols) store_global(place + e, static_cast<uint16_t>(half >> e % 2 * 16));
      }
    }
  }
}

using UnpackKernel = void (*)(const uint32_t*, const float*, int64_t, int64_t, uint16_t*);

inline UnpackKernel compiled_unpack(UnitLayout unit, bool bfloat16) {
  return with_values(unit, [&](auto values) -> UnpackKernel {
    using Values = decltype(values);
    // Native values are moved bitwise, so the dtype is irrelevant.
    if constexpr (Values::kLayout.type != ValueType::kNative) {
      if (bfloat16) return unpack_kernel<BFloat16, Values>;
    }
    return unpack_kernel<Float16, Values>;
  });
}

}  // namespace flashsparse::sparse_24
