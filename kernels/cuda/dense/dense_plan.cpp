// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense/dense_plan.h"

#include <algorithm>

#include "cuda/plan/search.h"

namespace flashsparse::dense {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The cost of a launch, in bytes of the weight that an SM reads in that time while all SMs read.
//
// FlashDecoding++ (section 4) weighs the width of a block: a wide one reads x less often, a narrow
// one gives more blocks, of which a small layer has too few. Split-K gives more blocks as well, at
// the cost of a reduction. Memory is the limiter as long as it is kept busy; the L2 has twice its
// bandwidth, so an SM that runs alone reads twice as fast, and a few blocks more on some SMs than
// on others do no harm. Fitted to an H200, which reads 35 bytes per nanosecond and SM.
double cost(const FlatShapeInfo& shape, int64_t rows, int64_t cols, int64_t tokens, int split,
            const Gpu& gpu) {
  constexpr double kTurn = 16 << 10;  // half a microsecond: a block's first load to its first mma
  constexpr double kJoin = 20 << 10;  // arriving, and each wait for loads from L2
  constexpr double kX = 0.1;          // cost of a byte of x, which comes from L2
  constexpr double kL2 = 2;           // its bandwidth over the memory's
  constexpr double kUnderWay = 80 << 10;  // bytes in flight per SM that keep the memory busy
  const int64_t blocks = ceil_div(rows, shape.rows()) * split;
  const int64_t turns = ceil_div(blocks, gpu.multiprocessors);
  const auto resident = static_cast<double>(
      std::min({turns, int64_t{shape.blocks}, gpu.blocks_by_shared(shape.shared_bytes())}));

  const int64_t steps = ceil_div(ceil_div(cols, kFlatStepCols), split);
  const double weight = 2.0 * kFlatStepCols * shape.rows();
  const double x = 2.0 * kFlatStepCols * shape.warps_n * tokens;
  const double sums = split == 1 ? 0 : sizeof(float) * static_cast<double>(tokens) * shape.rows();
  const double under_way = resident * shape.warps() * (shape.stages - 1) * shape.step_bytes();
  const double busy = std::min(1.0, under_way / kUnderWay);

  const double from_memory = steps * (weight + kX * x), from_l2 = steps * (weight + x) / kL2;
  const double block = std::max(from_memory, from_l2) / busy + sums + kTurn / resident;
  const double alone = from_l2 / busy + sums + kTurn / resident;
  // The last block reads the partial sums in so many rounds of loads.
  const int64_t waits =
      ceil_div(tokens * shape.rows() / 4, 32 * shape.warps()) * ceil_div(split, 4);
  const double join = split == 1 ? 0 : kJoin * (1 + waits);
  return std::max(block * blocks / gpu.multiprocessors, alone * turns) + join;
}

// Calls body(plan, cost) for each candidate launch: shapes of the smallest sufficient token count.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, bool aligned, const Gpu& gpu,
                   const Body& body) {
  int shape_tokens = 0;
  for (int shape = aligned ? 0 : kUnalignedFlat; shape < kFlatShapeCount - aligned; ++shape) {
    const FlatShapeInfo& info = kFlatShapes[shape];
    if (aligned && (info.tokens < tokens || info.shared_bytes() > gpu.shared_bytes)) continue;
    if (shape_tokens > 0 && info.tokens > shape_tokens) break;
    shape_tokens = info.tokens;
    for (int split = 1; split <= max_split(shape, rows, cols); ++split) {
      body(FlatPlan{shape, split}, cost(info, rows, cols, tokens, split, gpu));
    }
  }
}

}  // namespace

int max_split(int shape, int64_t rows, int64_t cols) {
  const FlatShapeInfo& info = kFlatShapes[shape];
  const bool counted = ceil_div(rows, info.rows()) <= kMaxCutRowBlocks;  // an arrival counter each
  const int64_t steps = ceil_div(cols, kFlatStepCols);
  return counted ? static_cast<int>(std::clamp<int64_t>(steps / info.warps_k, 1, kMaxSplit)) : 1;
}

Priced<FlatPlan> price_flat_gemm(int64_t rows, int64_t cols, int64_t tokens, bool aligned,
                                 const Gpu& gpu) {
  return cheapest<FlatPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, aligned, gpu, body); }, {-1, 1});
}

std::vector<Priced<FlatPlan>> list_flat_gemm(int64_t rows, int64_t cols, int64_t tokens,
                                             bool aligned, const Gpu& gpu) {
  return listed<FlatPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, aligned, gpu, body); });
}

// Of the shapes of the smallest sufficient token count, the first, which has the fewest warps along
// K and so the shortest reduction, if it gives two blocks per SM.
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

double gemv_microseconds(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  constexpr double kFixed = 3.2;  // launch, first load to first FMA, reduction of a block
  // Instructions per clock and SM; per 16 bytes of the weight a lane, and per token of these.
  constexpr double kIssue = 4 * 0.72, kChunk = 52, kToken = 14, kChunkElements = 32 * 8;
  const double elements = static_cast<double>(rows) * cols, bytes = 2 * elements;
  // On average two warps of 4 rows share x in L1.
  const double x_bytes = bytes * tokens / 4 / 2;
  const double issued = elements / kChunkElements * (kChunk + kToken * tokens);
  return kFixed + std::max({bytes / gpu.memory, (bytes + x_bytes) / gpu.l2,
                            issued / (gpu.multiprocessors * kIssue * gpu.clock)});
}

}  // namespace flashsparse::dense
