// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/unified_max_plan.h"

#include <algorithm>

namespace flashsparse::unified_max {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The share of the slots that have work, over all waves of rows * splits blocks.
double occupancy(int64_t rows, int64_t splits, int64_t slots) {
  const int64_t blocks = rows * splits;
  return static_cast<double>(blocks) / (ceil_div(blocks, slots) * slots);
}

// Blocks of `warps` warps that an SM holds.
int64_t resident(int64_t warps, const Problem& problem, const Gpu& gpu) {
  const int64_t bytes = warps * ring_bytes(problem.head_dim, problem.element_bytes);
  return std::min<int64_t>(gpu.blocks_by_shared(bytes), resident_blocks(problem.head_dim));
}

// The most warps per SM; of equals, the largest blocks.
int choose_warps(const Problem& problem, const Gpu& gpu) {
  int best = 1;
  for (int warps = 2; warps <= kSharingWarps; ++warps) {
    if (warps * resident(warps, problem, gpu) >= best * resident(best, problem, gpu)) best = warps;
  }
  return best;
}

// The most splits of a sequence: each has enough tiles, and the partial results of all fit in so
// many bytes.
int64_t most_splits(const Problem& problem, int64_t shared_bytes) {
  const int64_t tiles = ceil_div(problem.positions, kTile);
  const int64_t room = shared_bytes - kSplitsAt;
  const int64_t record_bytes = problem.record_floats() * sizeof(float);
  const int64_t most = ceil_div(tiles, least_tiles(static_cast<int>(tiles)));
  return std::clamp<int64_t>(std::min(most, room / record_bytes), 1, kMaxSplits);
}

}  // namespace

DecodePlan plan_decode(const Problem& problem, const Gpu& gpu) {
  DecodePlan plan;
  const int64_t rows = problem.rows();
  const auto ring = [&](int element_bytes) -> int64_t {
    return ring_bytes(problem.head_dim, element_bytes);
  };
  const auto warps_of = [&](int64_t ring) {
    return std::min<int64_t>(gpu.shared_bytes / ring, kMaxWarps);
  };
  const int64_t warps = warps_of(ring(problem.element_bytes));
  // A block that has its SM to itself has room for as many splits with small rings as with others.
  int64_t most = most_splits(problem, warps_of(ring(2)) * ring(2));
  // Few rows: one large block per SM. The fewer tiles a warp has in sequence, the sooner it ends.
  const int64_t fit = std::clamp<int64_t>(rows == 0 ? 1 : gpu.multiprocessors / rows, 1, most);
  if (rows <= gpu.multiprocessors && (fit == most || 4 * rows * fit >= 3 * gpu.multiprocessors)) {
    plan.warps = static_cast<int>(warps);
    plan.splits = static_cast<int>(fit);
    return plan;
  }
  // Many rows: several blocks per SM, so that one starts while another ends. Like FlashAttention-2
  // (Dao, 2023; num_splits_heuristic), the fewest splits that keep the GPU nearly as busy as the
  // best number would.
  plan.warps = choose_warps(problem, gpu);
  plan.splits = 1;
  const int64_t slots = gpu.multiprocessors * resident(plan.warps, problem, gpu);
  if (rows == 0 || 5 * rows >= 4 * slots) return plan;
  most = most_splits(problem, plan.warps * ring(problem.element_bytes));
  double best = 0;
  for (int64_t n = 1; n <= most; ++n) best = std::max(best, occupancy(rows, n, slots));
  while (occupancy(rows, plan.splits, slots) < 0.85 * best) ++plan.splits;
  return plan;
}

}  // namespace flashsparse::unified_max
