// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/experts_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/mma_units/linear_shared.h"
#include "cuda/plan/search.h"
#include "cuda/sparse_24/linear_shared.h"

namespace flashsparse::sparse_24 {

namespace {

constexpr int kMostColumnWarps = 4;  // with more, two stages of x do not fit
constexpr int kMostStages = 8;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fitted to 834 launches of six numbers of tokens, three value types and the layers of
// Qwen3-30B-A3B and Mixtral 8x7B, on an H200 and an H100 (experts_launches.csv): 9% off on average.
// What it takes for the fastest of a shape loses 0.5%, at most 9%.
constexpr double kMemory = 1.02;       // of the bus, as row tiles are not all there at once
constexpr double kUsualMemory = 26e3;  // bytes per microsecond and SM where the bus is not known
constexpr double kL2 = 36.3e3;         // the same, of x and of weights that are read again
constexpr double kClock = 1.98e3;      // clocks of a sub-core per microsecond
constexpr double kTile = 1.06;         // microseconds of the epilogue of a row tile
// A sub-core with fewer warps than this waits for latency: its instructions take longer by the
// ratio.
constexpr double kBusyWarps = 6.1;
// Clocks of a sub-core for a 16x256 block: its loads, metadata and dequantization; and those for 8
// tokens, which grow faster than the tokens do.
constexpr double kNativeClocks = 20, kCodesClocks = 96, kTokenClocks = 16.3, kTokenPower = 1.5;
// With 32 tokens dequantization hides less behind mma.
constexpr double kCodesOf32 = 1.59;
// Exponent of the norm by which what memory takes joins what a warp's instructions take: neither
// hides all of the other.
constexpr double kSharpness = 2;

// Blocks of slots of an expert on average, where each of `tokens` has it by chance.
double blocks_of_expert(double chosen, int64_t tokens, int block) {
  constexpr int64_t kExact = 512;
  const double n = static_cast<double>(tokens), mean = chosen * n;
  if (chosen >= 1) return static_cast<double>(ceil_div(tokens, block));
  double blocks = 0;
  if (tokens > kExact) {  // how many have more slots than k blocks, over all k: a normal curve
    const double width = std::sqrt(2 * mean * (1 - chosen));
    for (double slots = 0;; slots += block) {
      const double more = 0.5 * std::erfc((slots + 0.5 - mean) / width);
      blocks += more;
      if (more < 1e-3) return blocks;
    }
  }
  double share = std::pow(1 - chosen, n);  // of experts with so many tokens
  for (int64_t count = 1; count <= tokens; ++count) {
    share *=
        (n - static_cast<double>(count) + 1) / static_cast<double>(count) * chosen / (1 - chosen);
    blocks += share * static_cast<double>(ceil_div(count, block));
  }
  return blocks;
}

double cost(const ExpertsPlan& plan, const ExpertsProduct& product, const Gpu& gpu) {
  const int tokens = plan.info().tokens, warps = plan.warps(product.cols);
  const auto [active, each, slot_blocks] = ExpertsRouting(product, tokens);
  const double sets = static_cast<double>(plan.sets(product));
  const double mine = std::max(1.0, std::ceil(slot_blocks * sets / gpu.multiprocessors - 1e-9));
  const double set_units =
      static_cast<double>(plan.row_warps) * plan.info().row_units * unit_cols(product.cols);
  const double weight = set_units * product.unit.bytes(), first = active / slot_blocks;
  const double x = static_cast<double>(product.cols) * 2 * std::min<double>(tokens, each) /
                   (plan.x_resident(product.cols) ? sets : 1);
  const double memory = gpu.bus > 0 ? kMemory * gpu.bus / gpu.multiprocessors : kUsualMemory;
  const double bytes = weight * first / memory + (weight * (1 - first) + x) / kL2;
  const bool native = product.unit.type == ValueType::kNative;
  const double clocks = ((native ? kNativeClocks : kCodesClocks) +
                         kTokenClocks * std::pow(tokens / 8.0, kTokenPower)) *
                        (!native && tokens >= 32 ? kCodesOf32 : 1);
  const double instructions =
      set_units / 4 * clocks / kClock * std::max(1.0, kBusyWarps / (warps / 4.0)) + kTile;
  return mine *
         std::pow(std::pow(bytes, kSharpness) + std::pow(instructions, kSharpness), 1 / kSharpness);
}

}  // namespace

ExpertsRouting::ExpertsRouting(const ExpertsProduct& product, int block_slots) {
  const double experts = static_cast<double>(product.experts);
  const double chosen = std::min(1.0, static_cast<double>(product.top_k) / experts);
  active = experts * (1 - std::pow(1 - chosen, static_cast<double>(product.tokens)));
  each = static_cast<double>(product.slots()) / active;
  slot_blocks = experts * blocks_of_expert(chosen, product.tokens, block_slots);
}

const char* broken_experts(const ExpertsProduct& product) {
  constexpr int64_t kMostCols = 1 << 20, kMostRows = 1 << 24;
  if (product.rows < 1 || product.cols < 1 || product.tokens < 1 || product.top_k < 1 ||
      product.experts < 1)
    return "there is nothing to multiply";
  if (product.experts > experts::kMostExperts) return "there are more than 1024 experts";
  if (product.cols > kMostCols || product.rows > kMostRows) return "an expert is too large";
  // Places in the weight have 32 bits, and count 16 bytes.
  const int64_t units = product.expert_unit_rows() * unit_cols(product.cols);
  if (product.experts * units > UINT32_MAX / (product.unit.bytes() / kLaneBytes))
    return "the experts are larger than 64 GB";
  return nullptr;
}

int experts_column_warps(int64_t cols) {
  const int64_t units = unit_cols(cols);
  for (int warps = kMostColumnWarps; warps > 1; --warps) {
    if (warps <= units && 4 * (ceil_div(units, warps) * warps - units) <= units) return warps;
  }
  return 1;
}

int64_t ExpertsPlan::shared_bytes(const ExpertsProduct& product) const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps,
                           experts_column_warps(product.cols), x_stages,
                           ring_bytes(product.unit, info().row_units, weight_stages), 2)
      .bytes;
}

const char* ExpertsPlan::broken_rule(const ExpertsProduct& product, const Gpu& gpu) const {
  if (!experts_are_compiled(product.unit)) return kExpertsValues;
  if (shape < 0 || shape >= kExpertsShapeCount) return "there is no such shape";
  if (const char* const rule = broken_experts(product)) return rule;
  if (row_warps < 1 || row_warps > info().warps || warps(product.cols) > info().warps)
    return "the shape has fewer warps";
  if (weight_stages < 1 || x_stages < 1 || weight_stages > kMostStages || x_stages > 1024)
    return "a ring has at least one stage";
  if (shared_bytes(product) > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t most = experts::most_blocks(product.slots(), product.experts, info().tokens);
  const int64_t tiles = most * sets(product);
  if (blocks < 1) return "there is no thread block";
  if (product.slots() > INT32_MAX / 4 || most * info().tokens > INT32_MAX / 4 ||
      tiles > INT32_MAX / (int64_t{blocks} + 1))
    return "there are too many tokens for one launch";
  return nullptr;
}

experts::Cut ExpertsPlan::cut(const ExpertsProduct& product, bool early) const {
  const int64_t cols = product.cols;
  return {row_warps,
          experts_column_warps(cols),
          weight_stages,
          x_stages,
          static_cast<int>(product.expert_unit_rows()),
          static_cast<int>(unit_cols(cols)),
          static_cast<int>(sets(product)),
          static_cast<int>(set_steps(cols)),
          product.gated,
          x_resident(cols),
          early,
          Divider(product.gated ? static_cast<uint32_t>(product.top_k) : 1),
          Divider(experts_column_warps(cols)),
          Divider(static_cast<uint32_t>(sets(product))),
          Divider(blocks)};
}

namespace {

// Gives x these stages, and the weight what remains; false if that is less than two.
bool give_stages(ExpertsPlan& plan, const ExpertsProduct& product, const Gpu& gpu, int x_stages) {
  plan.x_stages = x_stages;
  for (plan.weight_stages = kMostStages; plan.weight_stages >= 2; --plan.weight_stages) {
    if (plan.shared_bytes(product) <= gpu.shared_bytes) return true;
  }
  return false;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const ExpertsProduct& product, int shape, const Gpu& gpu, const Body& body) {
  const auto steps = static_cast<int>(ExpertsPlan::set_steps(product.cols));
  const int column_warps = experts_column_warps(product.cols);
  for (int row_warps = 1; row_warps * column_warps <= kExpertsShapes[shape].warps; ++row_warps) {
    // All columns of x twice, or once, or a ring.
    for (const int x_stages : {2 * steps, steps, 3, 2}) {
      ExpertsPlan plan{shape, row_warps, 0, 0, gpu.multiprocessors};
      if (x_stages > 1024 || !give_stages(plan, product, gpu, x_stages)) continue;
      if (!plan.broken_rule(product, gpu)) body(plan, cost(plan, product, gpu));
    }
  }
}

}  // namespace

Priced<ExpertsPlan> price_experts(const ExpertsProduct& product, int shape, const Gpu& gpu) {
  return remembered(product.key(shape), gpu, [&] {
    return cheapest<ExpertsPlan>(
        [&](const auto& body) { for_each_plan(product, shape, gpu, body); },
        ExpertsPlan{shape, 1, 2, 2, 1});  // that breaks the rule which others break, too
  });
}

std::vector<Priced<ExpertsPlan>> list_experts(const ExpertsProduct& product, int shape,
                                              const Gpu& gpu) {
  return listed<ExpertsPlan>([&](const auto& body) { for_each_plan(product, shape, gpu, body); });
}

PricedLayer price_experts_layer(const ExpertsProduct& up, const ExpertsProduct& down,
                                const Gpu& gpu) {
  return remembered(layer_key(up, down), gpu, [&] {
    return cheapest_shape(kExpertsShapeCount, price_experts, up, down, gpu);
  });
}

}  // namespace flashsparse::sparse_24
