// SPDX-License-Identifier: Apache-2.0
// Which decode kernels of sparse_24 and hybrid_units are run in the emulator.
#pragma once
#include "cuda/mma_units/linear_plan.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Native values, fp8 and int4 by 128 columns in all their shapes, the others only where they differ
// from these: all of them would take a minute to compile.
constexpr bool is_emulated(const mma_units::ShapeInfo& shape, UnitLayout unit) {
  const bool int4 = unit.type == ValueType::kInt4, fp8 = unit.type == ValueType::kFp8;
  const bool all =
      unit.type == ValueType::kNative || (fp8 && unit.group == 0) || (int4 && unit.group == 128);
  const bool some = int4 || unit.group == (fp8 ? 128 : 32) || unit.group == 0;
  const bool few = shape.tokens == 8 && shape.row_units == 2;
  const bool holds_one = unit.group == 32 && shape.row_units == 4;
  return all || (some && (few || holds_one));
}

}  // namespace flashsparse::sparse_24
