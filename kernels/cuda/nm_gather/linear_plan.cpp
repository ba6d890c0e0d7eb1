// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/linear_plan.h"

#include <algorithm>

#include "cuda/plan/search.h"

namespace flashsparse::nm_gather {

namespace {

constexpr int64_t kMaxRowBlocks = 4096;  // that blocks share: an arrival counter each
constexpr int64_t kItem = 2;             // bytes of an element of x

// The shape of the smallest sufficient token count.
int choose_shape(int64_t tokens, const Layout& layout) {
  for (int i = 0; i < kShapeCount; ++i) {
    if (kShapes[i].fits(layout) && kShapes[i].tokens >= tokens) return i;
  }
  return -1;
}

// The cost of a plan, in clocks. Fitted to 4,570 launches with units of 32 rows on an H200 under
// programmatic dependent launch (benchmarks/gpu/sweep.py): the choices are on average 2.6%
// slower than the fastest of those. Fitted also to a model of launches without it, whose reductions
// end later (from 2,000 launches; it finds their fastest within 1.5%): by that model the choices
// are 1.6% slower than the best. One plan serves both, so that the order of summation is always the
// same. A block takes the longest of the weights, of x, which is transposed on the way, and of the
// instructions; the first chunk of x and the final reduction are not hidden.
double clocks(const Layout& layout, int64_t rows, int64_t cols, const Plan& plan, const Gpu& gpu) {
  constexpr double kL2 = 29.9;                // bytes of weights per clock and SM
  constexpr double kX = 12.1, kFirstX = 242;  // bytes of x per clock
  // Clocks of a warp for a pair of steps, waits included.
  constexpr double kEach = 144, kToken = 0.19;
  // Shares that are not hidden: of the shorter of weights and x, of instructions, of a block.
  constexpr double kMixed = 0.142, kWork = 0.0128, kEnd = 0.0991;
  constexpr double kChunk = 260, kMeeting = 3890, kWarp = 0.7;
  // Clocks of an SM to dequantize 1024 values: 110 instructions at 2.5 per clock. With it, the
  // choices for 8-bit values are 1.4% slower than the fastest of 1,300 launches.
  constexpr double kCodes = 44;
  constexpr double kSum = 0.195;               // clocks per float of a reduction between blocks
  constexpr double kWarps = 8, kIdle = 0.138;  // warps that saturate the weight loads
  const ShapeInfo& info = plan.info();
  const int64_t own = ceil_div(layout.sections(cols), plan.splits);
  const double unit = static_cast<double>(layout.pairs(cols)) * layout.pair_bytes();
  const double x = static_cast<double>(own) * layout.section_columns() * info.tokens * kItem;
  const double weights = plan.row_warps * unit / plan.splits / kL2;
  const double pairs = static_cast<double>(own) * layout.section_pairs() * plan.row_warps;
  const double of_codes = layout.value_type == ValueType::kNative ? 0 : layout.unit_rows / 32.0;
  const double each = kEach + kToken * info.tokens;
  const double instructions = std::max(pairs * each / plan.warps(), pairs * kCodes * of_codes);
  const double chunks = static_cast<double>(ceil_div(own, plan.chunk_sections));
  const double block = std::max({weights, x / kX, instructions}) +
                       kMixed * std::min(weights, x / kX) + x / chunks / kFirstX;
  const int64_t blocks = plan.row_blocks(layout, rows) * plan.splits;
  const double rounds = static_cast<double>(ceil_div(blocks, gpu.multiprocessors));
  const double floats = static_cast<double>(plan.partial_floats(layout, rows)) /
                        static_cast<double>(plan.row_blocks(layout, rows));
  const double meeting = plan.splits > 1 ? kMeeting + kSum * floats : 0;
  return (rounds + kEnd) * block + meeting +
         kIdle * weights * std::max(0.0, 1 - plan.warps() / kWarps) + kWork * instructions +
         chunks * kChunk + plan.warps() * kWarp;
}

}  // namespace

int64_t Plan::chunk_rows(const Layout& layout) const {
  // A chunk may begin within 32 columns if panels are no multiple of 32.
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
  if (!info().fits(layout)) return "the shape is for units of other rows, or values of other bits";
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

namespace {

// Calls body(plan, cost) for each candidate launch: shapes of the smallest sufficient token count.
template <class Body>
void for_each_plan(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                   const Body& body) {
  const int shape = choose_shape(tokens, layout);
  const ShapeInfo& info = kShapes[shape];
  const int64_t sections = layout.sections(cols);
  const int64_t section_bytes = layout.section_columns() * info.tokens * kItem;
  for (int splits = 1; splits <= std::min<int64_t>(sections, 16); ++splits) {
    const int64_t own = ceil_div(sections, splits);
    for (int row_warps = 1; row_warps <= info.warps; ++row_warps) {
      const int64_t blocks = ceil_div(layout.units(rows), row_warps) * splits;
      if (splits > 1 && blocks > gpu.multiprocessors) continue;
      const int most = info.warps / row_warps;
      for (const int depth : {most, std::max(most / 2, 1), std::clamp(6 / row_warps, 1, most)}) {
        // Chunks of x of so many bytes, and all of it at once.
        for (const int64_t bytes : {int64_t{8} << 10, int64_t{16} << 10, int64_t{32} << 10,
                                    int64_t{64} << 10, own * section_bytes}) {
          const int64_t chunk = std::clamp<int64_t>(bytes / section_bytes, 1, own);
          const Plan plan{shape, row_warps, depth, splits, static_cast<int>(chunk)};
          if (!plan.complaint(layout, rows, cols, tokens, gpu))
            body(plan, clocks(layout, rows, cols, plan, gpu));
        }
      }
    }
  }
}

}  // namespace

Priced<Plan> price_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                          const Gpu& gpu) {
  const std::array<int64_t, 6> key{rows,
                                   cols,
                                   choose_shape(tokens, layout),
                                   layout.group_units,
                                   layout.panel_columns,
                                   layout.panel_steps};
  return remembered(key, gpu, [&] {
    return cheapest<Plan>(
        [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); });
  });
}

std::vector<Priced<Plan>> list_linear(const Layout& layout, int64_t rows, int64_t cols,
                                      int64_t tokens, const Gpu& gpu) {
  return listed<Plan>(
      [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); });
}

}  // namespace flashsparse::nm_gather
