// SPDX-License-Identifier: Apache-2.0
// Unpacks hybrid_units: a block for each unit, a thread for the values of one lane and step.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/spread.cuh"
#include "cuda/sparse_24/unpack.cuh"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

using sparse_24::kUnpackThreads;

// Where the weight goes, and the unit's first element in it.
struct UnpackedUnit {
  const float* scales;  // of rows, if values have them
  int64_t row, col, rows, cols;
  uint16_t* weight;
};

// Multiplies two values of a line of a unit by their scale, if they have one: that of the row, or
// of its group of columns, whose 16 bits are at `groups`.
template <class Type, class Values>
__device__ __forceinline__ void scale(uint32_t& two, const uint32_t* groups, const UnpackedUnit& to,
                                      int step, int line) {
  constexpr UnitLayout kLayout = Values::kLayout;
  if constexpr (kLayout.group > 0) {
    const int place = step * kStepCols / kLayout.group * kUnitRows + line;
    const uint32_t both = load_readonly(groups + place / 2);
    const auto bits = static_cast<uint16_t>(both >> place % 2 * 16);
    two = sparse_24::scaled<Type>(two, to_float<Type>(bits));
  } else if constexpr (kLayout.has_row_scales()) {
    two = sparse_24::scaled<Type>(two, to.scales[to.row + line]);
  }
}

// Converts a lane's eight values of a step. `unit`: vectors of values.
template <class Type, class Values>
__device__ __forceinline__ void load(uint32_t (&words)[4], const uint32_t* unit, int step) {
  constexpr int kHeld = Values::kLayout.lane_steps();
  const int vector = step / kHeld * 32 + threadIdx.x % 32;
  Values::template widen<Type>(words, load_streaming(reinterpret_cast<const uint4*>(unit) + vector),
                               step % kHeld);
}

// Stores four columns from `col` of the unit on, as many as the weight has of them.
__device__ __forceinline__ void store(const uint2& four, const UnpackedUnit& to, int line,
                                      int col) {
  uint16_t* const place = to.weight + (to.row + line) * to.cols + to.col + col;
  FS_UNROLL
  for (int i = 0; i < 4; i += 2) {
    const uint32_t two = i == 0 ? four.x : four.y;
    if (to.cols % 2 == 0) {
      if (to.col + col + i < to.cols) store_global(reinterpret_cast<uint32_t*>(place + i), two);
    } else {
      FS_UNROLL
      for (int e = i; e < i + 2; ++e) {
        if (to.col + col + e < to.cols)
          store_global(place + e, static_cast<uint16_t>(two >> e % 2 * 16));
      }
    }
  }
}

template <class Type, class Values, bool dense>
__device__ __forceinline__ void unpack(const uint32_t* unit, const UnpackedUnit& to) {
  constexpr UnitLayout kLayout = Values::kLayout;
  const int step = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t* const behind = unit + kLayout.metadata() / 4;  // the second half, or metadata
  const uint32_t* const groups = unit + vector_bytes(kLayout, dense) / 4;
  uint32_t first[4], second[4];
  load<Type, Values>(first, unit, step);
  if constexpr (dense) load<Type, Values>(second, behind, step);
  FS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int line = lane / 4 + i % 2 * 8, col = step * kStepCols + i / 2 * 16 + lane % 4 * 4;
    if (to.row + line >= to.rows) continue;
    scale<Type, Values>(first[i], groups, to, step, line);
    if constexpr (dense) {
      scale<Type, Values>(second[i], groups, to, step, line);
      store(make_uint2(first[i], second[i]), to, line, col);
    } else {
      store(mma_units::spread(first[i], i, behind, step), to, line, col);
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
  const UnpackedUnit to{scales, unit_row * kUnitRows, unit_col * kUnitCols, rows, cols, weight};
  if (is_dense(Values::kLayout, begin, end)) {
    unpack<Type, Values, true>(unit, to);
  } else {
    unpack<Type, Values, false>(unit, to);
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
