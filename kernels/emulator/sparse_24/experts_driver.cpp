// SPDX-License-Identifier: Apache-2.0
// Runs a layer of experts over every case on stdin: the order of slots, both grouped products of
// sparse_24, and the sum of each token's slots.
//   case    int64 tokens, top_k, experts, known, has_map, hidden, intermediate, bfloat16, seed,
//   value
//           type, group, id_words, has_bias, weights_on_input, multiprocessors, shared_bytes, then
//           twice, of the first product and the second, row_warps, weight_stages, x_stages, blocks
//           and shape, or a shape of -1 to let the host plan for a GPU with these multiprocessors
//           and bytes of shared memory; float32 alpha, up_offset, limit; int32 ids[slots *
//           id_words], map[known] if it has one; float32 weights[slots]; of each product int32
//           units, float32 scales of rows if values have them, and uint16 bias if it has one;
//           uint16 x[tokens * stride], stride = hidden rounded up to a multiple of 8
//   answer  int32 slots of a block, order.slots, order.experts, order.blocks; uint16
//           y[tokens * hidden]
#include "cuda/experts/order.cuh"
#include "cuda/experts/sum.cuh"
#include "cuda/sparse_24/experts.cuh"
#include "cuda/sparse_24/values.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;
using driver::DeviceArray;
using simt::UsedByLastKernel;

using Kernel = void (*)(experts::Arguments, experts::Cut);

// Native values in all shapes, of the others what differs: all of them would take minutes to
// compile.
template <class Type, class Shape, class Values>
Kernel emulated_in() {
  constexpr UnitLayout kUnit = Values::kLayout;
  constexpr bool kBFloat16 = std::is_same_v<Type, BFloat16>;
  constexpr int kTokens = Shape::kTokens;
  constexpr bool kNative = kUnit.type == ValueType::kNative && (kBFloat16 || kTokens == 8);
  constexpr bool kInt4 =
      kUnit.type == ValueType::kInt4 &&
      (kUnit.group == 128 ? kBFloat16 && kTokens != 16 : !kBFloat16 && kTokens == 16);
  constexpr bool kFp8 =
      kUnit.type == ValueType::kFp8 && kTokens == 8 && kBFloat16 == (kUnit.group == 128);
  constexpr bool kInt8 = kUnit.type == ValueType::kInt8 && kTokens == 32 && kBFloat16;
  if constexpr (experts_are_compiled(kUnit) && (kNative || kInt4 || kFp8 || kInt8)) {
    return experts_kernel<Type, Shape, Values>;
  } else {
    return nullptr;
  }
}

template <class Type, class Values>
Kernel emulated(int shape) {
#define FS_EMULATED(...) emulated_in<Type, ExpertsShape<__VA_ARGS__>, Values>(),
  static const Kernel compiled[] = {FS_SPARSE_24_EXPERTS_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return compiled[shape];
}

int64_t ceil8(int64_t count) { return (count + 7) / 8 * 8; }

struct Weight {
  DeviceArray<uint32_t> units;
  DeviceArray<float> scales;
  DeviceArray<uint16_t> bias;

  Weight(const ExpertsProduct& product, bool has_bias)
      : units(driver::read<uint32_t>(product.experts * product.expert_unit_rows() *
                                     unit_cols(product.cols) * product.unit.words())),
        scales(driver::read<float>(
            product.unit.has_row_scales() ? product.experts * product.expert_unit_rows() * 16 : 0)),
        bias(driver::read<uint16_t>(
            has_bias ? product.experts * product.rows * (product.gated ? 2 : 1) : 0)) {}
};

struct Case {
  int64_t header[26];

  bool read() { return driver::read_header(header); }
  int64_t tokens() const { return header[0]; }
  int64_t top_k() const { return header[1]; }
  bool bfloat16() const { return header[7]; }
  int64_t seed() const { return header[8]; }
  bool has_bias() const { return header[12]; }
  Gpu gpu() const { return {static_cast<int>(header[14]), header[15], 9, 0}; }

  ExpertsProduct product(bool gated) const {
    const int64_t hidden = header[5], intermediate = header[6];
    return {gated ? intermediate : hidden,
            gated ? hidden : intermediate,
            gated,
            tokens(),
            top_k(),
            header[2],
            {static_cast<ValueType>(header[9]), static_cast<int>(header[10])}};
  }
  ExpertsPlan plan(const ExpertsProduct& product) const {
    const int64_t* const given = header + (product.gated ? 16 : 21);
    ExpertsPlan plan{static_cast<int>(given[4]), static_cast<int>(given[0]),
                     static_cast<int>(given[1]), static_cast<int>(given[2]),
                     static_cast<int>(given[3])};
    if (plan.shape < 0) {
      const int shape = experts_shape(this->product(true), this->product(false), gpu());
      plan = price_experts(product, shape, gpu()).launch;
    }
    if (const char* const rule = plan.broken_rule(product, gpu())) {
      std::fprintf(stderr, "%s\n", rule);
      std::exit(1);
    }
    return plan;
  }
  Kernel kernel(const ExpertsPlan& plan) const {
    const UnitLayout unit = product(true).unit;
    const Kernel found = with_values(unit, [&](auto values) {
      using Values = decltype(values);
      return bfloat16() ? emulated<BFloat16, Values>(plan.shape)
                        : emulated<Float16, Values>(plan.shape);
    });
    if (found) return found;
    std::fprintf(stderr, "shape %d is not emulated for these values\n", plan.shape);
    std::exit(1);
  }

  void run() const {
    const ExpertsProduct up = product(true), down = product(false);
    const ExpertsPlan up_plan = plan(up), down_plan = plan(down);
    const int64_t slots = up.slots(), known = header[3], id_words = header[11];
    const int block_slots = up_plan.info().tokens;
    if (block_slots != down_plan.info().tokens) std::abort();
    const auto numbers = driver::read<float>(3);
    const auto ids = driver::read<int32_t>(slots * id_words);
    const auto map = driver::read<int32_t>(header[4] ? known : 0);
    const auto weights = driver::read<float>(slots);
    const Weight w13(up, has_bias()), w2(down, has_bias());
    const int64_t x_stride = ceil8(up.cols), h_stride = ceil8(up.rows), y_stride = ceil8(down.rows);
    const auto x = driver::read<uint16_t>(tokens() * x_stride);

    const int64_t most_slots = experts::most_slots(slots, up.experts, block_slots);
    const int64_t most_blocks = experts::most_blocks(slots, up.experts, block_slots);
    const auto order_slots = driver::unwritten<int32_t>(most_slots);
    const auto order_experts = driver::unwritten<int32_t>(most_blocks);
    const auto order_blocks = driver::unwritten<int32_t>(1);
    const auto h = driver::unwritten<uint16_t>(slots * h_stride);
    const auto products = driver::unwritten<uint16_t>(slots * y_stride);
    const auto y = driver::unwritten<uint16_t>(tokens() * down.rows);

    const experts::Routing routing{ids.get(),
                                   static_cast<int>(id_words),
                                   header[4] ? map.get() : nullptr,
                                   static_cast<int>(slots),
                                   static_cast<int>(known),
                                   static_cast<int>(up.experts)};
    const experts::Order order{order_slots.get(), order_experts.get(), order_blocks.get()};
    simt::launch(1, experts::order_threads(routing.experts), 0, seed(), [&] {
      experts::order_kernel(routing, order, block_slots, static_cast<int>(most_slots),
                            static_cast<int>(most_blocks));
    });

    experts::Arguments a{};
    a.units = w13.units.get();
    a.scales = up.unit.has_row_scales() ? w13.scales.get() : nullptr;
    a.x = x.get();
    a.x_stride = static_cast<int>(x_stride);
    a.bias = has_bias() ? w13.bias.get() : nullptr;
    a.weights = header[13] ? weights.get() : nullptr;
    a.y = h.get();
    a.y_stride = static_cast<int>(h_stride);
    a.order = order;
    a.slots = static_cast<int>(slots);
    a.rows = static_cast<int>(up.rows);
    a.cols = static_cast<int>(up.cols);
    a.activation = {numbers[0], numbers[1], numbers[2]};
    {
      const UsedByLastKernel used[] = {{order_slots.get(), static_cast<size_t>(most_slots)},
                                       {order_experts.get(), static_cast<size_t>(most_blocks)},
                                       {order_blocks.get(), 1},
                                       {h.get(), static_cast<size_t>(slots * h_stride)}};
      const experts::Cut cut = up_plan.cut(up, false);
      simt::launch(up_plan.blocks, up_plan.threads(up.cols), up_plan.shared_bytes(up), seed(),
                   [&, kernel = kernel(up_plan)] { kernel(a, cut); });
    }

    a.units = w2.units.get();
    a.scales = down.unit.has_row_scales() ? w2.scales.get() : nullptr;
    a.x = h.get();
    a.x_stride = static_cast<int>(h_stride);
    a.bias = has_bias() ? w2.bias.get() : nullptr;
    a.weights = header[13] ? nullptr : weights.get();
    a.y = products.get();
    a.y_stride = static_cast<int>(y_stride);
    a.rows = static_cast<int>(down.rows);
    a.cols = static_cast<int>(down.cols);
    {
      const UsedByLastKernel used[] = {{h.get(), static_cast<size_t>(slots * h_stride)},
                                       {products.get(), static_cast<size_t>(slots * y_stride)}};
      const experts::Cut cut = down_plan.cut(down, seed() % 2 == 1);
      simt::launch(down_plan.blocks, down_plan.threads(down.cols), down_plan.shared_bytes(down),
                   seed(), [&, kernel = kernel(down_plan)] { kernel(a, cut); });
    }
    {
      const UsedByLastKernel used[] = {{products.get(), static_cast<size_t>(slots * y_stride)},
                                       {y.get(), static_cast<size_t>(tokens() * down.rows)}};
      const auto sum = bfloat16() ? experts::sum_kernel<BFloat16> : experts::sum_kernel<Float16>;
      simt::launch(simt::dim3(tokens(), experts::sum_blocks(down.rows)), experts::kSumThreads,
                   seed(), [&] {
                     sum(routing, static_cast<int>(top_k()), products.get(),
                         static_cast<int>(y_stride), static_cast<int>(down.rows), y.get());
                   });
    }
    driver::write(&block_slots, 1);
    driver::write(order_slots.get(), most_slots);
    driver::write(order_experts.get(), most_blocks);
    driver::write(order_blocks.get(), 1);
    driver::write(y.get(), tokens() * down.rows);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  Case c;
  while (c.read()) c.run();
}
