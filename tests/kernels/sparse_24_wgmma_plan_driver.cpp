// SPDX-License-Identifier: Apache-2.0
// Tells how the wgmma kernel of sparse_24 is cut; test_cuda_sparse_24_wgmma_plan.py asks. For each
// line "rows cols tokens type group x_bytes" of stdin, on an H200: the plan as the benchmarks name
// it, or the rule that it breaks.
#include <cstdio>

#include "cuda/sparse_24/wgmma_plan.h"

int main() {
  using namespace flashsparse;
  using namespace flashsparse::sparse_24;
  const Gpu gpu{132, 227 << 10, 9};
  long long rows, cols, tokens;
  int type, group, x_bytes;
  while (std::scanf("%lld %lld %lld %d %d %d", &rows, &cols, &tokens, &type, &group, &x_bytes) ==
         6) {
    const UnitLayout unit{static_cast<ValueType>(type), group};
    const WgmmaPlan plan = plan_wgmma(rows, cols, tokens, gpu, unit, x_bytes);
    if (const char* const rule = plan.broken_rule(rows, cols, tokens, gpu)) {
      std::printf("%s\n", rule);
      continue;
    }
    std::printf("%d rows x %d tokens%s, %d clusters of %dx%d\n",
                plan.info().groups * mma_units::kGroupRows, plan.info().tokens,
                plan.info().has_ring ? " by a ring" : "", plan.clusters, plan.down, plan.depth);
  }
}
