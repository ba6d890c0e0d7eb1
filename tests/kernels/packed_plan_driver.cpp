// SPDX-License-Identifier: Apache-2.0
// Tells how the packed kernel of nm_gather is planned; test_cuda_packed_plan.py asks. For each line
// of rows, cols, tokens, n, m, vector_length, on a GPU of 132 multiprocessors:
//   rows and tokens of a tile, band, estimated clocks, whether the kernel is the faster one
#include <cstdio>

#include "cuda/nm_gather/packed_plan.h"

int main() {
  using namespace flashsparse::nm_gather;
  const flashsparse::Gpu gpu{132, 227 << 10, 9};
  long long rows, cols, tokens;
  int n, m, length;
  while (std::scanf("%lld %lld %lld %d %d %d", &rows, &cols, &tokens, &n, &m, &length) == 6) {
    const Layout layout = layout_of(n, m, length);
    const PackedPlan plan = plan_packed(layout, rows, cols, tokens, gpu);
    if (const char* const wrong = plan.complaint(layout, rows, cols, tokens, gpu)) {
      std::fprintf(stderr, "%s\n", wrong);
      return 1;
    }
    std::printf("%d %d %d %.0f %d\n", plan.info().rows, plan.info().tile_tokens(), plan.band,
                packed_clocks(layout, rows, cols, tokens, plan, gpu),
                packed_pays(layout, rows, tokens, gpu));
  }
}
