// SPDX-License-Identifier: Apache-2.0
// Tells how the linear kernel of tiled_bitmap is cut; test_cuda_tiled_bitmap_plan.py asks. For each
// line "rows cols lines tokens operands multiprocessors shared_bytes hopper memory" of stdin,
// operands a number of Operands, the numbers of the plan in their order, or the rule that it
// breaks.
#include <cstdio>

#include "cuda/tiled_bitmap/linear_plan.h"

int main() {
  using namespace flashsparse::tiled_bitmap;
  long long rows, cols, lines, tokens, bytes;
  int operands, multiprocessors, hopper;
  double memory;
  while (std::scanf("%lld %lld %lld %lld %d %d %lld %d %lf", &rows, &cols, &lines, &tokens,
                    &operands, &multiprocessors, &bytes, &hopper, &memory) == 9) {
    flashsparse::Gpu gpu{multiprocessors, bytes, hopper != 0 ? 9 : 8};
    gpu.bus = memory;
    const LinearPlan plan =
        plan_linear(rows, cols, lines, tokens, gpu, static_cast<Operands>(operands));
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::printf("%s\n", rule);
      continue;
    }
    std::printf("%d %d %d %d %d %d %d %d\n", plan.shape, plan.row_warps, plan.column_warps,
                plan.scratch_quarters, plan.x_stages, plan.ring_lines, plan.blocks, plan.is_early);
  }
}
