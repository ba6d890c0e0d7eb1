// SPDX-License-Identifier: Apache-2.0
// Tells how decode attention is cut; test_cuda_unified_max_plan.py asks. Arguments: sequences,
// kv_heads, group, positions, head_dim, multiprocessors, bytes of shared memory. Answer: warps,
// splits, bytes of shared memory, rows.
#include <cstdio>
#include <cstdlib>

#include "cuda/attention/unified_max_plan.h"

using namespace flashsparse::unified_max;

int main(int argc, char** argv) {
  long long asked[7];
  if (argc != 8) return 1;
  for (int i = 0; i < 7; ++i) asked[i] = std::atoll(argv[i + 1]);
  const auto [sequences, kv_heads, group, positions, head_dim, multiprocessors, shared] = asked;
  const Problem problem{sequences, kv_heads, group, positions, static_cast<int>(head_dim)};
  const DecodePlan plan = plan_decode(problem, {static_cast<int>(multiprocessors), shared});
  std::printf("%d %d %u %lld\n", plan.warps, plan.splits, plan.shared_bytes(problem),
              static_cast<long long>(problem.rows()));
}
