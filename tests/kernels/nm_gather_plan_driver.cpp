// SPDX-License-Identifier: Apache-2.0
// Tells how the kernel of nm_gather for few tokens is cut; test_cuda_nm_gather_plan.py asks. For
// each line "rows cols tokens n m vector_length type group multiprocessors shared_bytes" of stdin,
// type a number of ValueType, the numbers of the plan in their order, or what is wrong with it.
#include <cstdio>

#include "cuda/nm_gather/linear_plan.h"

int main() {
  using namespace flashsparse;
  using namespace flashsparse::nm_gather;
  long long rows, cols, tokens, bytes;
  int n, m, length, type, group, multiprocessors;
  while (std::scanf("%lld %lld %lld %d %d %d %d %d %d %lld", &rows, &cols, &tokens, &n, &m, &length,
                    &type, &group, &multiprocessors, &bytes) == 10) {
    const Gpu gpu{multiprocessors, bytes};
    const Layout layout = layout_of(n, m, length, static_cast<ValueType>(type), group);
    if (layout.panel_columns == 0 || tokens > max_tokens(layout, gpu)) {
      std::printf("not for this kernel\n");
      continue;
    }
    const Plan plan = plan_linear(layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(layout, rows, cols, tokens, gpu)) {
      std::printf("%s\n", wrong);
      continue;
    }
    std::printf("%d %d %d %d %d\n", plan.shape, plan.row_warps, plan.depth_warps, plan.splits,
                plan.chunk_sections);
  }
}
