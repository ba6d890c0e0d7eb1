// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense/dense_plan.h"

#include <algorithm>

namespace flashsparse::dense {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a launch costs, counted in bytes of the weight that a multiprocessor reads in that time
// while all of them read.
//
// FlashDecoding++ (section 4) weighs the width of a block: a wide one reads x less often, a narrow
// one makes more blocks, and a small layer has too few. Cutting K makes blocks, too, and costs the
// sums that they leave. The memory is the bound as long as it is kept busy; the L2 cache has twice
// its bandwidth, so a multiprocessor that is left alone reads twice as fast, too, and a few blocks
// more on some than on others do no harm. Constants: fitted to an H200, which reads 35 bytes a
// nanosecond and multiprocessor.
double cost(const FlatShapeInfo& shape, int64_t rows, int64_t cols, int64_t tokens, int split,
            const Gpu& gpu) {
  constexpr double kTurn = 16 << 10;  // half a microsecond: a block's first load to its first mma
  constexpr double kJoin = 20 << 10;  // arriving, and each wait for loads from L2
  constexpr double kX = 0.1;          // what a byte of x costs, which comes from L2
  constexpr double kL2 = 2;           // its bandwidth over the memory's
  constexpr double kUnderWay = 80 << 10;  // loads of a multiprocessor that keep the memory busy
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
  // Every thread of the last block waits for its sums a few times.
  const int64_t waits =
      ceil_div(tokens * shape.rows() / 4, 32 * shape.warps()) * ceil_div(split, 4);
  const double join = split == 1 ? 0 : kJoin * (1 + waits);
  return std::max(block * blocks / gpu.multiprocessors, alone * turns) + join;
}

// Calls body(plan, cost) for each launch that is compared: of the fewest tokens that will do.
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
  const bool counted = ceil_div(rows, info.rows()) <= kMaxCutRowBlocks;  // a counter each
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

// Among the shapes for the fewest tokens that will do, the first, which has the fewest warps along
// K and so the fewest sums to add, if it makes two blocks for every multiprocessor.
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
  constexpr double kFixed = 3.2;  // a launch, the first load to the first product, a block's sums
  // Instructions a clock and multiprocessor; for each 16 bytes of the weight a lane, and token.
  constexpr double kIssue = 4 * 0.72, kChunk = 52, kToken = 14, kChunkElements = 32 * 8;
  const double elements = static_cast<double>(rows) * cols, bytes = 2 * elements;
  // Warps of 4 rows share x in L1, on average two at a time.
  const double x_bytes = bytes * tokens / 4 / 2;
  const double issued = elements / kChunkElements * (kChunk + kToken * tokens);
  return kFixed + std::max({bytes / gpu.memory, (bytes + x_bytes) / gpu.l2,
                            issued / (gpu.multiprocessors * kIssue * gpu.clock)});
}

}  // namespace flashsparse::dense
