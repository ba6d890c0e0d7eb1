// SPDX-License-Identifier: Apache-2.0
// Unpacks hybrid_units: a block for each unit, a thread for the values of one lane and step.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/sparse_24/unpack.cuh"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

using sparse_24::kUnpackThreads;

// A dense unit: `scales` are those of rows, if values have them.
template <class Type, class Values>
__device__ __forceinline__ void unpack_dense(const uint32_t* unit, const float* scales,
                                             int64_t first_row, int64_t first_col, int64_t rows,
                                             int64_t cols, uint16_t* weight) {
  constexpr UnitLayout kLayout = Values::kLayout;
  const int step = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t* const groups = unit + vector_bytes(kLayout, true) / 4;
  FS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int fragment = 2 * step + half;
    const int vector = fragment / kLayout.lane_steps() * 32 + lane;
    uint32_t words[4];
    Values::template widen<Type>(words,
                                 load_streaming(reinterpret_cast<const uint4*>(unit) + vector),
                                 fragment % kLayout.lane_steps());
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int unit_line = lane / 4 + i % 2 * 8;
      const int64_t row = first_row + unit_line;
      const int64_t col = first_col + fragment * 16 + i / 2 * 8 + lane % 4 * 2;
      if (row >= rows || col >= cols) continue;
      const uint32_t two =
          sparse_24::scaled<Type, Values>(words[i], groups, scales, step, unit_line, row);
      uint16_t* const place = weight + row * cols + col;
      if (cols % 2 == 0) {
        store_global(reinterpret_cast<uint32_t*>(place), two);
      } else {
        store_global(place, static_cast<uint16_t>(two));
        if (col + 1 < cols) store_global(place + 1, static_cast<uint16_t>(two >> 16));
      }
    }
  }
}

// Launch with a block for each unit, and kUnpackThreads threads. `offsets` begin with the first
// unit to unpack.
template <class Type, class Values>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const uint32_t* units, const int32_t* offsets, const float* scales, int64_t rows,
                  int64_t cols, uint16_t* weight) {
  const int64_t across = unit_cols(cols), unit_row = blockIdx.x / across;
  const int64_t unit_col = blockIdx.x - unit_row * across;
  const int32_t begin = load_readonly(offsets + blockIdx.x);
  const int32_t end = load_readonly(offsets + blockIdx.x + 1);
  const uint32_t* const unit = units + int64_t{begin} * (kPieceBytes / 4);
  const int64_t row = unit_row * kUnitRows, col = unit_col * kUnitCols;
  if (is_dense(Values::kLayout, begin, end)) {
    unpack_dense<Type, Values>(unit, scales, row, col, rows, cols, weight);
  } else {
    sparse_24::unpack_unit<Type, Values>(unit, scales, row, col, rows, cols, weight);
  }
}

using UnpackKernel = void (*)(const uint32_t*, const int32_t*, const float*, int64_t, int64_t,
                              uint16_t*);

inline UnpackKernel compiled_unpack(UnitLayout unit, bool bfloat16) {
  return sparse_24::with_values(unit, [&](auto values) -> UnpackKernel {
    using Values = decltype(values);
    // Native values are moved bitwise, so the dtype is irrelevant.
    if constexpr (Values::kLayout.type != ValueType::kNative) {
      if (bfloat16) return unpack_kernel<BFloat16, Values>;
    }
    return unpack_kernel<Float16, Values>;
  });
}

}  // namespace flashsparse::hybrid_units
