// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/linear_plan.h"

#include <algorithm>

namespace flashsparse::nm_gather {

namespace {

constexpr int64_t kMaxRowBlocks = 4096;  // where blocks share rows: each needs an arrival counter
constexpr int64_t kItem = 2;             // bytes of a value, and of x

// The shape for the fewest tokens that will do.
int choose_shape(int64_t tokens, int unit_rows) {
  for (int i = 0; i < kShapeCount; ++i) {
    if (kShapes[i].unit_rows == unit_rows && kShapes[i].tokens >= tokens) return i;
  }
  return -1;
}

// All of x at once where it is small, else chunks of a seventh of shared memory, which are 32 KB on
// a Hopper: what the warps that bring x have on their way at once.
int choose_chunk(const Layout& layout, int64_t sections, int tokens, const Gpu& gpu) {
  const int64_t section_bytes = layout.section_columns() * tokens * kItem;
  if (sections * section_bytes <= gpu.shared_bytes / 3) return static_cast<int>(sections);
  return static_cast<int>(std::max<int64_t>(gpu.shared_bytes / 7 / section_bytes, 1));
}

// What a plan costs, in clocks: the weight's bytes from memory, which all multiprocessors share, or
// those of a block, with x, at the rate at which one multiprocessor takes them from the L2; what
// each round of blocks begins and ends with; and the meeting of blocks that share rows, the last of
// which reads what all have left. The two rates were measured on an H200, the rest is an estimate.
double clocks(const Layout& layout, int64_t rows, int64_t cols, const Plan& plan, const Gpu& gpu) {
  constexpr double kMemory = 17, kL2 = 34;  // bytes a clock and multiprocessor
  constexpr double kRound = 3000, kMeeting = 4000;
  const int64_t pair_bytes = layout.unit_rows * kPair * kItem;
  const double unit = static_cast<double>(layout.pairs(cols)) * pair_bytes;
  const double x = static_cast<double>(cols) * plan.info().tokens * kItem;
  const double block = (plan.row_warps * unit + x) / plan.splits / kL2;
  const double all = layout.units(rows) * unit / gpu.multiprocessors / kMemory;
  const int64_t blocks = plan.row_blocks(layout, rows) * plan.splits;
  const double rounds = static_cast<double>(ceil_div(blocks, gpu.multiprocessors));
  const double sums = plan.partial_floats(layout, rows) * sizeof(float) /
                      static_cast<double>(plan.row_blocks(layout, rows));
  // Of plans that are bound by memory the one with the smaller blocks.
  return std::max(rounds * block, all) + 0.02 * block + rounds * kRound +
         (plan.splits > 1 ? kMeeting + sums / kL2 : 0);
}

}  // namespace

int64_t Plan::chunk_rows(const Layout& layout) const {
  // A chunk may begin inside of 32 columns, where panels are no multiple of them.
  const int64_t columns = int64_t{chunk_sections} * layout.section_columns();
  return ceil_div(columns + (layout.panel_columns % kBlock ? kBlock - 1 : 0), kBlock) * kBlock;
}

int64_t Plan::x_bytes(const Layout& layout, int64_t cols) const {
  const int buffers = chunk_sections < ceil_div(layout.sections(cols), splits) ? 2 : 1;
  return buffers * chunk_rows(layout) * info().tokens * kItem;
}

int64_t Plan::shared_bytes(const Layout& layout, int64_t cols) const {
  const int64_t sums = int64_t{info().tokens} * (info().unit_rows + 4) * sizeof(float);
  return std::max(x_bytes(layout, cols) + warps() * info().ring_bytes(), warps() * sums) +
         kFlagBytes;
}

int64_t Plan::partial_floats(const Layout& layout, int64_t rows) const {
  if (splits == 1) return 0;
  return splits * row_blocks(layout, rows) * row_warps * info().unit_rows * info().tokens;
}

const char* Plan::complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                            const Gpu& gpu) const {
  if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
  if (info().unit_rows != layout.unit_rows) return "the shape is for units of other rows";
  if (tokens > info().tokens) return "the shape is for fewer tokens";
  if (row_warps < 1 || depth_warps < 1 || splits < 1 || chunk_sections < 1)
    return "no part may be empty";
  if (warps() > info().warps) return "more warps than the shape has";
  if (splits > layout.sections(cols)) return "more splits than sections";
  if (splits > 1 && row_blocks(layout, rows) > kMaxRowBlocks) return "too many blocks share rows";
  if (int64_t{chunk_sections} * layout.section_pairs() > kMaxChunkPairs) return "a chunk too long";
  if (shared_bytes(layout, cols) > gpu.shared_bytes) return "too much shared memory";
  return nullptr;
}

Plan plan_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  const int shape = choose_shape(tokens, layout.unit_rows);
  const ShapeInfo& info = kShapes[shape];
  const int64_t sections = layout.sections(cols);
  Plan best{shape, 0, 0, 0, 0};
  double least = 0;
  for (int splits = 1; splits <= std::min<int64_t>(sections, 32); ++splits) {
    const int64_t own = ceil_div(sections, splits);
    for (int row_warps = 1; row_warps <= info.warps; ++row_warps) {
      const int64_t depth = std::min<int64_t>(info.warps / row_warps, own * layout.section_pairs());
      Plan plan{shape, row_warps, static_cast<int>(depth), splits,
                choose_chunk(layout, own, info.tokens, gpu)};
      while (plan.depth_warps > 1 && plan.shared_bytes(layout, cols) > gpu.shared_bytes)
        --plan.depth_warps;
      if (plan.complaint(layout, rows, cols, tokens, gpu)) continue;
      if (splits > 1 && plan.row_blocks(layout, rows) * splits > gpu.multiprocessors) continue;
      const double cost = clocks(layout, rows, cols, plan, gpu);
      if (best.row_warps && cost >= least) continue;
      best = plan;
      least = cost;
    }
  }
  return best;
}

}  // namespace flashsparse::nm_gather
