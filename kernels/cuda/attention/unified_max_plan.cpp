// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/unified_max_plan.h"

#include <algorithm>

namespace flashsparse::unified_max {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The share of the slots that have work while rows * splits blocks run through them.
double occupancy(int64_t rows, int64_t splits, int64_t slots) {
  const int64_t blocks = rows * splits;
  return static_cast<double>(blocks) / (ceil_div(blocks, slots) * slots);
}

// Blocks of `warps` warps that a multiprocessor holds.
int64_t resident(int64_t warps, int head_dim, const Gpu& gpu) {
  return std::min<int64_t>(gpu.blocks_by_shared(warps * ring_bytes(head_dim)),
                           resident_blocks(head_dim));
}

// Most warps a multiprocessor, and of equals the largest blocks.
int choose_warps(int head_dim, const Gpu& gpu) {
  int best = 1;
  for (int warps = 2; warps <= kSharingWarps; ++warps) {
    if (warps * resident(warps, head_dim, gpu) >= best * resident(best, head_dim, gpu))
      best = warps;
  }
  return best;
}

// Most splits of a sequence: each has something to do, and in the end all lie where blocks of so
// many warps have their rings.
int64_t most_splits(const Problem& problem, int64_t warps) {
  const int64_t tiles = ceil_div(problem.positions, kTile);
  const int64_t room = warps * ring_bytes(problem.head_dim) - kSplitsAt;
  const int64_t record_bytes = problem.record_floats() * sizeof(float);
  const int64_t most = ceil_div(tiles, least_tiles(static_cast<int>(tiles)));
  return std::clamp<int64_t>(std::min(most, room / record_bytes), 1, kMaxSplits);
}

}  // namespace

DecodePlan plan_decode(const Problem& problem, const Gpu& gpu) {
  DecodePlan plan;
  const int64_t rows = problem.rows();
  const int64_t warps =
      std::min<int64_t>(gpu.shared_bytes / ring_bytes(problem.head_dim), kMaxWarps);
  int64_t most = most_splits(problem, warps);
  // Few rows have the multiprocessors to themselves, a large block on each: the fewer tiles a warp
  // has in a row, the sooner it is done.
  const int64_t fit = std::clamp<int64_t>(rows == 0 ? 1 : gpu.multiprocessors / rows, 1, most);
  if (rows <= gpu.multiprocessors && (fit == most || 4 * rows * fit >= 3 * gpu.multiprocessors)) {
    plan.warps = static_cast<int>(warps);
    plan.splits = static_cast<int>(fit);
    return plan;
  }
  // Others share them, and one begins while another ends. As FlashAttention-2 does (Dao, 2023;
  // num_splits_heuristic): the fewest splits that keep the GPU nearly as busy as the best number
  // would.
  plan.warps = choose_warps(problem.head_dim, gpu);
  plan.splits = 1;
  const int64_t slots = gpu.multiprocessors * resident(plan.warps, problem.head_dim, gpu);
  if (rows == 0 || 5 * rows >= 4 * slots) return plan;
  most = most_splits(problem, plan.warps);
  double best = 0;
  for (int64_t n = 1; n <= most; ++n) best = std::max(best, occupancy(rows, n, slots));
  while (occupancy(rows, plan.splits, slots) < 0.85 * best) ++plan.splits;
  return plan;
}

}  // namespace flashsparse::unified_max
