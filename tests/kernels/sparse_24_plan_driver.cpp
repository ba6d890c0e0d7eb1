// SPDX-License-Identifier: Apache-2.0
// Tells how the kernel of sparse_24 for few tokens is cut; test_cuda_sparse_24_plan.py asks. For
// each line "rows cols tokens type group x_bytes multiprocessors shared_bytes hopper" of stdin,
// type a number of ValueType, the numbers of the plan in their order, or the rule that it breaks.
#include <cstdio>

#include "cuda/sparse_24/linear_plan.h"

int main() {
  using namespace flashsparse;
  using namespace flashsparse::sparse_24;
  long long rows, cols, tokens, bytes;
  int type, group, x_bytes, multiprocessors, hopper;
  while (std::scanf("%lld %lld %lld %d %d %d %d %lld %d", &rows, &cols, &tokens, &type, &group,
                    &x_bytes, &multiprocessors, &bytes, &hopper) == 9) {
    const Gpu gpu{multiprocessors, bytes, hopper != 0 ? 9 : 8};
    const UnitLayout unit{static_cast<ValueType>(type), group};
    const LinearPlan plan = plan_linear(rows, cols, tokens, gpu, unit, x_bytes);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::printf("%s\n", rule);
      continue;
    }
    std::printf("%d %d %d %d %d %d\n", plan.shape, plan.row_warps, plan.column_warps,
                plan.weight_stages, plan.x_stages, plan.blocks);
  }
}
