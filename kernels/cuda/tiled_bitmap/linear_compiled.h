// SPDX-License-Identifier: Apache-2.0
// The compiled linear kernels of tiled_bitmap. Operands of each kind, and of them shapes of few and
// of many tokens, have a source file each, so that they compile side by side.
#pragma once
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_plan.h"

namespace flashsparse::tiled_bitmap {

struct Compiled {
  void (*float16)(Arguments, Cut);
  void (*bfloat16)(Arguments, Cut);
};

// By the number of a shape; null where a shape has more tokens than `most`, or no more than
// `least`.
template <Operands operands, int least, int most>
const Compiled* compiled_linear();

}  // namespace flashsparse::tiled_bitmap
