// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/experts_wgmma_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/experts/wgmma_shared.h"
#include "cuda/mma_units/wgmma_search.h"
#include "cuda/plan/search.h"

namespace flashsparse::sparse_24 {

namespace {

using mma_units::kMostCluster;
using mma_units::kMostXStages;
using mma_units::kWgmmaBarriers;
using mma_units::wgmma_stage_bytes;

constexpr double kLaunch = 3.0;  // microseconds until the first x and weight have arrived
constexpr double kTile = 2.4;    // of the prologue and epilogue of a tile
constexpr double kGather = 3.0;  // of the launch that puts x into the order of slots
constexpr double kCopied = 3e6;  // bytes that it reads and writes a microsecond

double cost(const ExpertsWgmmaPlan& plan, const ExpertsProduct& product, const Gpu& gpu) {
  const ExpertsRouting routing(product, plan.info().tokens);
  const double tiles =
      std::max(1.0, routing.slot_blocks * static_cast<double>(plan.row_tiles(product)));
  const double rounds = std::max(1.0, std::ceil(tiles / plan.clusters - 1e-9));
  const double panel = wgmma_panel(plan.info(), product.unit, plan.down,
                                   std::min<double>(plan.info().tokens, routing.each),
                                   routing.slot_blocks / routing.active, plan.blocks(), gpu);
  const double steps = static_cast<double>(unit_cols(product.cols)) * 4;
  const double gathered =
      product.gated ? kGather + static_cast<double>(product.slots()) * product.cols * 4 / kCopied
                    : 0;
  return kLaunch + gathered + rounds * (steps * panel + kTile);
}

}  // namespace

int64_t ExpertsWgmmaPlan::shared_bytes() const {
  const int64_t exchange = gated ? int64_t{info().groups} * 4 * experts::kWgmmaExchange : 0;
  return kWgmmaBarriers + stages * wgmma_stage_bytes(info().tokens) + exchange;
}

const char* ExpertsWgmmaPlan::broken_rule(const ExpertsProduct& product, const Gpu& gpu) const {
  if (!gpu.has_wgmma()) return "the GPU has no wgmma: it needs compute capability 9.0";
  if (!experts_are_compiled(product.unit)) return kExpertsValues;
  if (shape < 0 || shape >= kExpertsWgmmaShapeCount) return "there is no such shape";
  if (!info().is_for(product.unit)) return "values of this type have no such shape";
  if (down < 1 || down > kMostCluster || (down & (down - 1)) != 0 ||
      !mma_units::wgmma_shares(info().tokens, down))
    return "a cluster has 1, 2, 4 or 8 blocks, which share the tokens of a tile in eights";
  if (stages < 2 || stages > kMostXStages) return "x has 2 to 16 stages";
  if (stages < 2 * info().stage_panels())
    return "x has two stages at least, of two panels up to 128 tokens";
  if (gated != product.gated) return "the plan is for the other product";
  if (const char* const rule = broken_experts(product)) return rule;
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t most = experts::most_blocks(product.slots(), product.experts, info().tokens);
  if (clusters < 1) return "there is no thread block";
  if (product.slots() > INT32_MAX / 4 ||
      experts::most_slots(product.slots(), product.experts, info().tokens) > INT32_MAX / 4 ||
      most * row_tiles(product) > INT32_MAX / 2 - clusters)
    return "there are too many tokens for one launch";
  return nullptr;
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const ExpertsProduct& product, int shape, const Gpu& gpu, const Body& body) {
  if (!gpu.has_wgmma()) return;
  // Clusters of four were the fastest of 72 points in one, by 2% (experts_launches_shapes.csv).
  for (int down = 1; down <= 2; down *= 2) {
    ExpertsWgmmaPlan plan{shape, down, 0, 1, product.gated};
    const int64_t room = gpu.shared_bytes - plan.shared_bytes();
    plan.stages = static_cast<int>(
        std::min<int64_t>(room / wgmma_stage_bytes(plan.info().tokens), kMostXStages));
    const int64_t tiles =
        experts::most_blocks(product.slots(), product.experts, plan.info().tokens) *
        plan.row_tiles(product);
    plan.clusters = static_cast<int>(std::min(mma_units::wgmma_slots(plan.cluster(), gpu), tiles));
    if (!plan.broken_rule(product, gpu)) body(plan, cost(plan, product, gpu));
  }
}

}  // namespace

Priced<ExpertsWgmmaPlan> price_experts_wgmma(const ExpertsProduct& product, int shape,
                                             const Gpu& gpu) {
  return remembered(product.key(shape), gpu, [&] {
    return cheapest<ExpertsWgmmaPlan>(
        [&](const auto& body) { for_each_plan(product, shape, gpu, body); },
        ExpertsWgmmaPlan{shape, 1, 2, 1, product.gated});  // that breaks the rule which others do
  });
}

std::vector<Priced<ExpertsWgmmaPlan>> list_experts_wgmma(const ExpertsProduct& product, int shape,
                                                         const Gpu& gpu) {
  return listed<ExpertsWgmmaPlan>(
      [&](const auto& body) { for_each_plan(product, shape, gpu, body); });
}

PricedLayer price_experts_wgmma_layer(const ExpertsProduct& up, const ExpertsProduct& down,
                                      const Gpu& gpu) {
  return remembered(layer_key(up, down), gpu, [&] {
    return cheapest_shape(kExpertsWgmmaShapeCount, price_experts_wgmma, up, down, gpu);
  });
}

Kernel choose_experts_kernel(const ExpertsProduct& up, const ExpertsProduct& down, const Gpu& gpu) {
  const double many = price_experts_wgmma_layer(up, down, gpu).cost;
  const double few = price_experts_layer(up, down, gpu).cost;
  return many >= 0 && (few < 0 || many < few) ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::sparse_24
