// SPDX-License-Identifier: Apache-2.0
// Tells how the wgmma kernel of tiled_bitmap is cut; test_cuda_tiled_bitmap_wgmma_plan.py asks. For
// each line "rows cols lines tokens" of stdin, on an H200: the microseconds that the plan should
// take and its numbers in their order, or the rule that it breaks.
#include <cstdio>

#include "cuda/tiled_bitmap/wgmma_plan.h"

int main() {
  using namespace flashsparse::tiled_bitmap;
  const flashsparse::Gpu gpu{132, 227 << 10, 9};
  long long rows, cols, lines, tokens;
  while (std::scanf("%lld %lld %lld %lld", &rows, &cols, &lines, &tokens) == 4) {
    const WgmmaPlan plan = plan_wgmma(rows, cols, tokens, lines, gpu);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::printf("%s\n", rule);
      continue;
    }
    std::printf("%.2f [%d, %d, %d, %d, %d, %d]\n", wgmma_cost(plan, rows, cols, tokens, lines, gpu),
                plan.shape, plan.down, plan.depth, plan.stages, plan.clusters, plan.ring_lines);
  }
}
