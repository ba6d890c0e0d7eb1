// SPDX-License-Identifier: Apache-2.0
// Runs the experts of sparse_24 by their mma kernel over every case on stdin (experts_case.h). Of a
// launch: row_warps, weight_stages, x_stages, blocks and shape.
#include "cuda/sparse_24/experts.cuh"
#include "emulator/sparse_24/experts_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

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

ExpertsPlan plan_of(const ExpertsCase& c, const ExpertsProduct& product) {
  const int64_t* const given = c.given(product);
  ExpertsPlan plan{static_cast<int>(given[4]), static_cast<int>(given[0]),
                   static_cast<int>(given[1]), static_cast<int>(given[2]),
                   static_cast<int>(given[3])};
  if (plan.shape < 0) {
    const int shape = price_experts_layer(c.product(true), c.product(false), c.gpu()).shape;
    plan = price_experts(product, shape, c.gpu()).launch;
  }
  require(plan, product, c.gpu());
  return plan;
}

Kernel kernel_of(const ExpertsCase& c, const ExpertsPlan& plan) {
  return c.kernel(plan.shape, [&](auto type, auto values) {
    return emulated<decltype(type), decltype(values)>(plan.shape);
  });
}

void run(const ExpertsCase& c) {
  const ExpertsProduct up = c.product(true), down = c.product(false);
  const ExpertsPlan up_plan = plan_of(c, up), down_plan = plan_of(c, down);
  const int block_slots = up_plan.info().tokens;
  if (block_slots != down_plan.info().tokens) std::abort();
  const ExpertsCase::Data data = c.order(block_slots);
  const int64_t slots = up.slots();
  const auto h = driver::unwritten<uint16_t>(slots * data.h_stride);
  const auto products = driver::unwritten<uint16_t>(slots * data.y_stride);

  experts::Arguments a{};
  const auto set = [&](const ExpertsProduct& product, const uint16_t* x, int64_t stride,
                       uint16_t* y) {
    c.set(a, data, product, y);
    a.x = x;
    a.x_stride = static_cast<int>(stride);
    a.weights = c.weighs(product) ? data.weights.get() : nullptr;
  };
  set(up, data.x.get(), data.x_stride, h.get());
  {
    const UsedByLastKernel used[] = {
        {data.order_slots.get(), static_cast<size_t>(data.most_slots)},
        {data.order_experts.get(), static_cast<size_t>(data.most_blocks)},
        {data.order_blocks.get(), 1},
        {h.get(), static_cast<size_t>(slots * data.h_stride)}};
    const experts::Cut cut = up_plan.cut(up, false);
    simt::launch(up_plan.blocks, up_plan.threads(up.cols), up_plan.shared_bytes(up), c.seed(),
                 [&, kernel = kernel_of(c, up_plan)] { kernel(a, cut); });
  }
  set(down, h.get(), data.h_stride, products.get());
  {
    const UsedByLastKernel used[] = {{h.get(), static_cast<size_t>(slots * data.h_stride)},
                                     {products.get(), static_cast<size_t>(slots * data.y_stride)}};
    const experts::Cut cut = down_plan.cut(down, c.seed() % 2 == 1);
    simt::launch(down_plan.blocks, down_plan.threads(down.cols), down_plan.shared_bytes(down),
                 c.seed(), [&, kernel = kernel_of(c, down_plan)] { kernel(a, cut); });
  }
  c.finish(data, block_slots, products.get(), slots, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  ExpertsCase c;
  while (c.read()) run(c);
}
