// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense_plan.h"

#include <algorithm>
#include <limits>

namespace flashsparse::dense {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a launch costs, counted in bytes that one multiprocessor reads in that time.
//
// FlashDecoding++ (section 4) weighs the width of a block: a wide one reads x less often, a narrow
// one makes more blocks, and a small layer has too few. Cutting K makes blocks, too, and costs the
// sums that they leave. So all of it is counted: the turns that the multiprocessors take, the bytes
// of a turn, and what a turn and a cut cost besides. The constants are estimates, of a GPU that
// reads 30 bytes a nanosecond and multiprocessor.
double cost(const FlatShapeInfo& shape, int64_t rows, int64_t cols, int64_t tokens, int split,
            int multiprocessors) {
  constexpr double kTurn = 16 << 10;  // half a microsecond: a block's first load to its first mma
  constexpr double kJoin = 40 << 10;  // arriving, and the last block's loads from L2
  constexpr double kFromL2 = 0.75;    // the price of a byte that comes from L2, as x does
  constexpr double kUnderWay = 40 << 10;  // loads of a multiprocessor that keep the memory busy
  const int64_t blocks = ceil_div(rows, shape.rows()) * split;
  const int64_t steps = ceil_div(ceil_div(cols, kFlatStepCols), split);
  const double step_bytes = 2.0 * kFlatStepCols * (shape.rows() + kFromL2 * tokens);
  const double sums = split == 1 ? 0 : 2 * sizeof(float) * kFromL2 * tokens * shape.rows();

  // A multiprocessor takes one block after the other; those that it holds at a time share its
  // bandwidth and hide each other's beginnings. A few turns end together, of many the last one is
  // half empty on average.
  const int64_t turns = ceil_div(blocks, multiprocessors);
  const auto resident = static_cast<double>(std::min<int64_t>(turns, shape.blocks));
  const double counted = turns <= int64_t{4} * shape.blocks
                             ? static_cast<double>(turns)
                             : static_cast<double>(blocks) / multiprocessors + 0.5;
  const double loads = resident * 32 * 16 * shape.warps() * shape.row_blocks * (shape.stages - 1);
  const double busy = std::min(1.0, loads / kUnderWay);
  return counted * ((steps * step_bytes + sums) / busy + kTurn / resident) +
         (split > 1 ? kJoin : 0);
}

// The parts of K that cost least.
int choose_split(int shape, int64_t rows, int64_t cols, int64_t tokens, int multiprocessors,
                 double& least) {
  int best = 1;
  least = std::numeric_limits<double>::infinity();
  for (int split = 1; split <= max_split(shape, rows, cols); ++split) {
    const double found = cost(kFlatShapes[shape], rows, cols, tokens, split, multiprocessors);
    if (found < least) {
      least = found;
      best = split;
    }
  }
  return best;
}

}  // namespace

int max_split(int shape, int64_t rows, int64_t cols) {
  const FlatShapeInfo& info = kFlatShapes[shape];
  const bool counted = ceil_div(rows, info.rows()) <= kMaxCutRowBlocks;  // a counter each
  const int64_t steps = ceil_div(cols, kFlatStepCols);
  return counted ? static_cast<int>(std::clamp<int64_t>(steps / info.warps_k, 1, kMaxSplit)) : 1;
}

FlatPlan plan_flat_gemm(int64_t rows, int64_t cols, int64_t tokens, bool aligned,
                        int multiprocessors) {
  double least = 0;
  if (!aligned) {
    return {kUnalignedFlat,
            choose_split(kUnalignedFlat, rows, cols, tokens, multiprocessors, least)};
  }
  FlatPlan best{-1, 1};
  for (int i = 0; i < kUnalignedFlat; ++i) {
    if (kFlatShapes[i].tokens < tokens) continue;
    if (best.shape >= 0 && kFlatShapes[i].tokens > kFlatShapes[best.shape].tokens) break;
    double found = 0;
    const int split = choose_split(i, rows, cols, tokens, multiprocessors, found);
    if (best.shape < 0 || found < least) {
      best = {i, split};
      least = found;
    }
  }
  return best;
}

// Of the shapes for the fewest tokens that will do the first, which has the fewest warps along K
// and so the fewest sums to add, if it makes two blocks for every multiprocessor.
int plan_gemv(int64_t rows, int64_t tokens, bool aligned, int multiprocessors) {
  if (!aligned) return kUnalignedGemv;
  int best = -1;
  for (int i = 0; i < kUnalignedGemv; ++i) {
    const GemvShapeInfo& shape = kGemvShapes[i];
    if (shape.tokens < tokens) continue;
    if (best >= 0 && shape.tokens > kGemvShapes[best].tokens) break;
    best = i;
    if (ceil_div(rows, shape.rows()) >= int64_t{2} * multiprocessors) break;
  }
  return best;
}

}  // namespace flashsparse::dense
