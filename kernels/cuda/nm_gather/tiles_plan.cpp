// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/tiles_plan.h"

#include <algorithm>

#include "cuda/plan/search.h"

namespace flashsparse::nm_gather {

namespace {

constexpr int64_t kItem = 2;           // bytes of an element of x
constexpr int64_t kMaxSharers = 4096;  // tiles of y that blocks share: an arrival counter each

// Blocks that run at once: GPCs differ in size, and the SMs of one that do not fill a cluster stay
// idle. On an H200 128 blocks in clusters of 4 did not fit.
int64_t blocks_at_once(const TilesPlan& plan, const Gpu& gpu) {
  return plan.cluster > 2 ? gpu.multiprocessors * 3 / 4 : gpu.multiprocessors;
}

// The cost of a plan, in clocks of 1755 MHz. Fitted to 2,940 launches with 32 rows per index on an
// H200 (benchmarks/gpu/nm.py --launches): the choices were on average 0.3% slower than the fastest
// of those. Measured before blocks took several tiles and before stages waited for their loads; not
// fitted again since. A block takes the longest of L2, shared memory and tensor core time; the
// prologue of a tile and its stores are not hidden.
double clocks(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
              const TilesPlan& plan, const Gpu& gpu) {
  // Bytes per clock and SM: x and weights from the L2, weights from memory.
  constexpr double kX = 125, kWeights = 33.5, kMemory = 15.8, kShared = 180;
  constexpr double kMma = 1659, kOperands = 139;  // multiplications; clocks to wait for operands
  constexpr double kMixed = 0.14, kMixedMemory = 0.15;          // share of the shorter, not hidden
  constexpr double kBegin = 1290, kTile = 3140, kStore = 0.32;  // clocks; the last per float of y
  constexpr double kCluster = 3520, kMeeting = 6820, kSum = 0.09;
  constexpr double kWiden = 2.0 / 32 / 2.5;  // clocks per quantized value: instructions, lanes, IPC
  constexpr double kFewBytes = 40960, kFew = 0.71, kTwoStages = 0.08, kOneStage = 0.5;
  const TileShapeInfo& info = plan.info();
  const double own = static_cast<double>(ceil_div(layout.sections(cols), plan.splits));
  const double kept = own * layout.section_pairs() * kPair;
  const double columns = own * layout.section_columns();
  const double block_rows = plan.block_rows(), floats = block_rows * info.tokens();
  const double value =  // bytes
      static_cast<double>(layout.pair_bytes()) / (layout.unit_rows * kPair);
  const double weights = block_rows * kept * value, x = columns * info.x_tokens() * kItem;
  // The fewer columns are kept, the more often gathered rows of x fall into the same banks.
  const double density = kept / columns;
  const double conflicts = density > 0.4 ? 1.45 : density > 0.3 ? 1.55 : density > 0.2 ? 1.7 : 1.9;
  const double gathered = floats / info.warp_rows * kept * kItem * conflicts;
  const double shared = (x + weights * (1 + info.token_warps) + gathered) / kShared;
  const double l2 = x / kX + weights / kWeights;
  // A warp waits for the operands of each step; with fewer than four warps tensor cores idle.
  const double step = info.warp_rows * info.warp_tokens * kStep / (kMma / 4) + kOperands;
  const double widening = value < 2 ? kWiden * block_rows * kept * info.token_warps : 0;
  const double mma = std::max(floats * kept / kMma, kept / kStep * step) + widening;
  const double longest = std::max({shared, l2, mma});
  const double stage = static_cast<double>(plan.weight_stages) * block_rows * kPair * value;
  const double waiting =
      (1 + kFew * std::max(0.0, 1 - stage / kFewBytes)) * (1 + (plan.x_stages == 1   ? kOneStage
                                                                : plan.x_stages == 2 ? kTwoStages
                                                                                     : 0));
  const double block =
      (longest + kMixed * (shared + l2 + mma - longest)) * waiting + kStore * floats + kTile;
  const double tiles =
      static_cast<double>(ceil_div(plan.blocks(rows, tokens), blocks_at_once(plan, gpu))) * block;
  const double all = static_cast<double>(layout.units(rows)) * layout.unit_rows *
                     static_cast<double>(layout.pairs(cols)) * kPair * value / kMemory /
                     gpu.multiprocessors;
  const double meeting = plan.splits == 1   ? 0
                         : plan.cluster > 1 ? kCluster
                                            : kMeeting + kSum * plan.splits * floats;
  return std::max(tiles, all) + kMixedMemory * std::min(tiles, all) + kBegin + meeting;
}

}  // namespace

int64_t TilesPlan::stage_rows(const Layout& layout) {
  // A section may begin within 32 columns if panels are no multiple of 32.
  const int64_t slack = layout.section_columns() % kBlock ? kBlock - 1 : 0;
  return ceil_div(layout.section_columns() + slack, kBlock) * kBlock;
}

int64_t TilesPlan::x_stage_bytes(const Layout& layout) const {
  return stage_rows(layout) * info().x_tokens() * kItem;
}

int64_t TilesPlan::weight_stage_bytes(const Layout& layout) const {
  return ceil_div(block_rows(), layout.unit_rows) * layout.pair_bytes() +
         int64_t{row_warps} * kPair;
}

int64_t TilesPlan::shared_bytes(const Layout& layout) const {
  const int64_t sums = int64_t{row_warps} * info().tokens() * (info().warp_rows + 4) * 4;
  return kTileBarrierBytes + std::max(y_bytes() + x_stages * x_stage_bytes(layout) +
                                          weight_stages * weight_stage_bytes(layout),
                                      sums);
}

int64_t TilesPlan::arrivals(int64_t rows, int64_t tokens) const {
  return splits == 1 || cluster > 1 ? 0 : row_blocks(rows) * token_blocks(tokens);
}

int64_t TilesPlan::partial_floats(int64_t rows, int64_t tokens) const {
  return arrivals(rows, tokens) * splits * block_rows() * info().tokens();
}

const char* TilesPlan::complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                                 const Gpu& gpu) const {
  if (shape < 0 || shape >= kTileShapeCount) return "there is no such shape";
  if (!info().fits(layout)) return "the rows of the shape's warps do not share an index";
  if (info().tokens() < kTileTokens && tokens > info().tokens())
    return "the shape is for fewer tokens";
  if (row_warps < 1 || splits < 1 || x_stages < 1 || weight_stages < 1 || band < 1)
    return "no part may be empty";
  if (cluster < 1 || cluster > 8) return "clusters are of 1 to 8 blocks";
  if (cluster > 1 && !gpu.has_clusters()) return "clusters are for compute capability 9.0";
  if (cluster != 1 && cluster != splits) return "splits are one cluster or none";
  if (row_warps > info().row_warps) return "more warps than the shape has";
  if (x_stages + weight_stages > kMaxTileStages) return "too many stages";
  if (splits > layout.sections(cols)) return "more splits than sections";
  if (arrivals(rows, tokens) > kMaxSharers) return "too many blocks are shared";
  if (blocks(rows, tokens) > INT32_MAX || int64_t{band} * token_blocks(tokens) > INT32_MAX)
    return "too many blocks: multiply fewer tokens at a time";
  if (shared_bytes(layout) > gpu.shared_bytes) return "too much shared memory";
  return nullptr;
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                   const Body& body) {
  constexpr int kMostSplits = 16, kMostCluster = 6, kMostStages = 16, kBand = 16;
  const int most = static_cast<int>(std::min<int64_t>(layout.sections(cols), kMostSplits));
  for (int shape = 0; shape < kTileShapeCount; ++shape) {
    const TileShapeInfo& info = kTileShapes[shape];
    if (!info.fits(layout)) continue;
    // Few warps leave tensor cores idle: they are tried only if more do not fit.
    for (int row_warps = info.row_warps; row_warps > 0; --row_warps) {
      bool any = false;
      for (int splits = 1; splits <= most; ++splits) {
        for (const int cluster : {1, splits}) {
          if (cluster > kMostCluster) continue;
          for (int x_stages = 1; x_stages <= 3; ++x_stages) {
            TilesPlan plan{shape, row_warps, splits, x_stages, 1, kBand, cluster};
            if (splits > 1 && plan.blocks(rows, tokens) > blocks_at_once(plan, gpu)) continue;
            const int64_t left = gpu.shared_bytes - kTileBarrierBytes - plan.y_bytes() -
                                 x_stages * plan.x_stage_bytes(layout);
            plan.weight_stages = static_cast<int>(
                std::clamp<int64_t>(left / plan.weight_stage_bytes(layout), 1, kMostStages));
            if (plan.complaint(layout, rows, cols, tokens, gpu)) continue;
            body(plan, clocks(layout, rows, cols, tokens, plan, gpu));
            any = true;
          }
        }
      }
      if (any && row_warps <= info.row_warps / 2) break;
    }
  }
}

// Launches are the same for up to 32 tokens, and for equally many tiles of 64.
int64_t tokens_of_plan(int64_t tokens) {
  return tokens <= 32 ? 32 : x_tile_count(tokens) * kTileTokens;
}

}  // namespace

bool tiles_fit(const Layout& layout, const Gpu& gpu) {
  for (int shape = 0; shape < kTileShapeCount; ++shape) {
    const TilesPlan least{shape, 1, 1, 1, 1, 1, 1};
    if (!least.complaint(layout, 1, 1, 1, gpu)) return true;
  }
  return false;
}

Priced<TilesPlan> price_tiles(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                              const Gpu& gpu) {
  const int64_t most = tokens_of_plan(tokens);
  const std::array<int64_t, 8> key{rows,
                                   cols,
                                   most,
                                   layout.unit_rows,
                                   layout.group_units,
                                   layout.panel_columns,
                                   layout.panel_steps,
                                   bits_of(layout.value_type)};
  return remembered(key, gpu, [&] {
    return cheapest<TilesPlan>(
        [&](const auto& body) { for_each_plan(layout, rows, cols, most, gpu, body); },
        {-1, 0, 0, 0, 0, 0, 0});
  });
}

std::vector<Priced<TilesPlan>> list_tiles(const Layout& layout, int64_t rows, int64_t cols,
                                          int64_t tokens, const Gpu& gpu) {
  return listed<TilesPlan>([&](const auto& body) {
    for_each_plan(layout, rows, cols, tokens_of_plan(tokens), gpu, body);
  });
}

}  // namespace flashsparse::nm_gather
