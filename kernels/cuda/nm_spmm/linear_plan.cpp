// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_spmm/linear_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/plan/search.h"

namespace flashsparse::nm_spmm {

namespace {

constexpr int64_t kMaxTiles = 4096;  // that blocks share: an arrival counter each
constexpr int64_t kItem = sizeof(float);
constexpr double kPackedShare = 0.75;  // share of the columns of x below which a block packs them

uint32_t rounded(int64_t bytes) { return static_cast<uint32_t>(ceil_div(bytes, 16) * 16); }

// Expected share of the columns of x that any row of a row block keeps.
double kept_share(const Layout& layout) {
  const double density = static_cast<double>(layout.entries) / layout.columns;
  return 1 - std::pow(1 - density, layout.groups());
}

// The estimated clocks of a plan: the paper's analysis (Equations 3 to 6) with an SM's rates of
// issue, FMA, shared memory and L2.
double clocks(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Plan& plan,
              const Gpu& gpu) {
  constexpr double kIssue = 4, kTurn = 128;     // instructions; bytes of shared memory, per clock
  constexpr double kL2 = 34, kMemory = 17;      // bytes per clock and SM
  constexpr double kAlone = 1.3, kPanel = 500;  // clocks per instruction, and to wait for a panel,
                                                // if no other warp hides them
  // Counted instructions: per entry, besides FMAs and loads; then per warp-wide copy of 16 bytes a
  // lane, of packed x, of whole x, of values interleaved with FMAs and of values before them.
  constexpr double kEach = 4, kListed = 12, kWhole = 5, kSpread = 17, kValues = 12;
  constexpr double kMixed = 0.15;  // share of the shorter that the longer does not hide
  constexpr double kLaunch = 6000, kMeeting = 6000;
  const KernelInfo& info = plan.info();
  const double mt = info.thread_tokens, nt = info.thread_rows;
  const double warps = info.threads() / 32.0, entries = layout.entries;
  const double panels = static_cast<double>(ceil_div(layout.panels(cols), plan.splits));
  const double used = layout.columns * (info.packing ? kept_share(layout) : 1);
  const double x_bytes = used * info.tokens * kItem;
  const double w_bytes = entries * info.rows * kItem;
  const double copies =
      info.packing ? kListed * x_bytes + kSpread * w_bytes : kWhole * x_bytes + kValues * w_bytes;
  const double issued = entries * (mt * nt + (mt + nt) / 4 + kEach) * warps + copies / 512;
  const double turns = entries * warps * (mt + nt) + (x_bytes + w_bytes) / kTurn;
  const int64_t blocks = plan.tiles(rows, tokens) * plan.splits;
  const double own = static_cast<double>(ceil_div(blocks, gpu.multiprocessors));
  const int64_t held = std::min<int64_t>({ceil_div(blocks, gpu.multiprocessors), info.blocks,
                                          gpu.blocks_by_shared(plan.shared_bytes(layout))});
  const double fma = entries * warps * mt * nt * 32 / gpu.fma_units();
  const double issue = std::max(issued / kIssue, fma);
  const double block = panels * (std::max(issue, turns) + kMixed * std::min(issue, turns));
  const double alone = panels * (issued / warps * kAlone + kPanel);
  const double l2 = panels * (x_bytes + w_bytes) / kL2;
  const double memory = static_cast<double>(layout.panels(cols) * layout.entries) *
                        static_cast<double>(layout.blocks(rows) * kBlockRows * kItem) /
                        (kMemory * gpu.multiprocessors);
  const double tile_bytes = static_cast<double>(info.tokens) * info.rows * kItem;
  const double meeting = plan.splits > 1 ? kMeeting + own * 2 * tile_bytes / kL2 : 0;
  const double rounds = std::ceil(own / static_cast<double>(held));
  return std::max({own * block, own * l2, memory, rounds * alone}) + kLaunch + meeting;
}

}  // namespace

Stage Plan::stage(const Layout& layout) const {
  const int64_t groups = ceil_div(info().rows, layout.vector_length);
  const uint32_t x = static_cast<uint32_t>(x_columns(layout) * info().tokens * kItem);
  const uint32_t values = static_cast<uint32_t>(layout.entries * info().rows * kItem);
  const uint32_t columns = x + values + rounded(groups * layout.entries);
  return {x, x + values, columns, columns + (info().packing ? rounded(layout.capacity) : 0)};
}

int64_t Plan::shared_bytes(const Layout& layout) const {
  return int64_t{stage(layout).bytes} * info().stages;
}

int64_t Plan::partial_floats(int64_t rows, int64_t tokens) const {
  return splits == 1 ? 0 : splits * tiles(rows, tokens) * info().tokens * info().rows;
}

const char* Plan::complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                            const Gpu& gpu) const {
  if (kernel < 0 || kernel >= kKernelCount) return "there is no such kernel";
  if (layout.vector_length < info().thread_rows) return "a thread's rows must share their columns";
  if (splits < 1 || splits > layout.panels(cols)) return "more splits than panels, or none";
  if (splits > 1 && tiles(rows, tokens) > kMaxTiles) return "too many tiles for splits";
  if (shared_bytes(layout) > gpu.shared_bytes) return "too much shared memory";
  if (tokens > max_tokens(layout, cols)) return "too many tokens for one launch";
  return nullptr;
}

int64_t max_tokens(const Layout& layout, int64_t cols) {
  constexpr int64_t kTokens = 128, kMost = 8192;  // a multiple of every kernel's; how many of it
  const int64_t columns = layout.panels(cols) * layout.columns;
  return std::clamp<int64_t>(kMaxXt / columns / kTokens, 1, kMost) * kTokens;
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                   const Body& body) {
  const bool packs = kept_share(layout) < kPackedShare;
  for (int kernel = 0; kernel < kKernelCount; ++kernel) {
    if (!kKernels[kernel].pipelined()) continue;  // V1 and V2 exist for comparison only
    if (kKernels[kernel].packing && !packs) continue;
    for (const int splits : {1, 2, 4, 8, 16}) {
      const Plan plan{kernel, splits};
      if (!plan.complaint(layout, rows, cols, tokens, gpu))
        body(plan, clocks(layout, rows, cols, tokens, plan, gpu));
    }
  }
}

}  // namespace

Priced<Plan> price_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                          const Gpu& gpu) {
  const std::array<int64_t, 7> key{
      rows, cols, tokens, layout.vector_length, layout.columns, layout.entries, layout.capacity};
  return remembered(key, gpu, [&] {
    return cheapest<Plan>(
        [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); }, {-1, 1});
  });
}

std::vector<Priced<Plan>> list_linear(const Layout& layout, int64_t rows, int64_t cols,
                                      int64_t tokens, const Gpu& gpu) {
  return listed<Plan>(
      [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); });
}

}  // namespace flashsparse::nm_spmm
