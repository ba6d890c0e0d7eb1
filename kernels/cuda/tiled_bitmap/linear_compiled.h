// SPDX-License-Identifier: Apache-2.0
// The compiled decode kernels of tiled_bitmap. Each kind of operands has a source file of the
// shapes for few tokens and one of those for more (instances.cmake), so that they compile in
// parallel.
#pragma once
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_plan.h"

namespace flashsparse::tiled_bitmap {

struct Compiled {
  void (*float16)(Arguments, Cut);
  void (*bfloat16)(Arguments, Cut);
};

// Indexed by shape; null where the tokens of a shape are not in (least, most].
template <Operands operands, int least, int most>
const Compiled* compiled_linear();

}  // namespace flashsparse::tiled_bitmap
