// SPDX-License-Identifier: Apache-2.0
#include "cuda/unified_max_plan.h"

#include <algorithm>

namespace flashsparse::unified_max {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The share of the slots that have work while rows * splits blocks run through them.
double occupancy(int64_t rows, int64_t splits, int64_t slots) {
  const int64_t blocks = rows * splits;
  return static_cast<double>(blocks) / (ceil_div(blocks, slots) * slots);
}

// Blocks of so many warps that a multiprocessor holds.
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

}  // namespace

// As FlashAttention-2 does (Dao, 2023; num_splits_heuristic): the fewest splits that keep the GPU
// nearly as busy as the best number would.
DecodePlan plan_decode(const Problem& problem, const Gpu& gpu) {
  DecodePlan plan;
  const int64_t rows = problem.rows();
  // A few rows have the multiprocessors to themselves: the fewer tiles a warp has in a row, the
  // sooner it is done. Many take turns, and one begins while another ends.
  const bool alone = rows <= gpu.multiprocessors;
  plan.warps = choose_warps(problem.head_dim, gpu);
  int64_t slots = gpu.multiprocessors * resident(plan.warps, problem.head_dim, gpu);
  if (alone) {
    const int64_t fit = gpu.shared_bytes / ring_bytes(problem.head_dim);
    plan.warps = static_cast<int>(std::min<int64_t>(fit, kMaxWarps));
    slots = gpu.multiprocessors;
  }
  plan.splits = 1;
  if (rows == 0 || 5 * rows >= 4 * slots) return plan;
  const int64_t tiles = ceil_div(problem.positions, kTile);
  const int64_t most =
      std::clamp<int64_t>(ceil_div(tiles, kLeastTiles), 1, std::min<int64_t>(kMaxSplits, slots));
  double best = 0;
  for (int64_t n = 1; n <= most; ++n) best = std::max(best, occupancy(rows, n, slots));
  while (occupancy(rows, plan.splits, slots) < 0.85 * best) ++plan.splits;
  return plan;
}

}  // namespace flashsparse::unified_max
