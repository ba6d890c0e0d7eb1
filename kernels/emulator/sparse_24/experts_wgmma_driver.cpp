// SPDX-License-Identifier: Apache-2.0
// Runs the experts of sparse_24 by their wgmma kernel over every case on stdin (experts_case.h). Of
// a launch: down, stages, clusters, nothing, and shape.
#include "cuda/experts/gather.cuh"
#include "cuda/sparse_24/experts_wgmma.cuh"
#include "emulator/sparse_24/experts_case.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::sparse_24;

using Kernel = void (*)(experts::WgmmaArguments, TensorMap);

// Native values in all shapes, of the others what differs: all of them would take minutes to
// compile.
template <class Type, class Values, int tokens, int groups, int bits>
Kernel emulated_in() {
  constexpr UnitLayout kUnit = Values::kLayout;
  constexpr bool kBFloat16 = std::is_same_v<Type, BFloat16>;
  constexpr bool kNative = kUnit.type == ValueType::kNative && (kBFloat16 || tokens == 128);
  constexpr bool kInt4 = kUnit.type == ValueType::kInt4 && tokens == 64 && kBFloat16;
  constexpr bool kFp8 =
      kUnit.type == ValueType::kFp8 && kUnit.group == 128 && tokens == 192 && !kBFloat16;
  constexpr bool kInt8 = kUnit.type == ValueType::kInt8 && tokens == 64 && kBFloat16;
  if constexpr (experts_are_compiled(kUnit) && (kNative || kInt4 || kFp8 || kInt8)) {
    return compiled_experts_kernel<Type, Values, tokens, groups, bits>();
  } else {
    return nullptr;
  }
}

template <class Type, class Values>
Kernel emulated(int shape) {
#define FS_EMULATED(...) emulated_in<Type, Values, __VA_ARGS__>(),
  static const Kernel compiled[] = {FS_SPARSE_24_EXPERTS_WGMMA_SHAPES(FS_EMULATED)};
#undef FS_EMULATED
  return compiled[shape];
}

ExpertsWgmmaPlan plan_of(const ExpertsCase& c, const ExpertsProduct& product) {
  const int64_t* const given = c.given(product);
  ExpertsWgmmaPlan plan{static_cast<int>(given[4]), static_cast<int>(given[0]),
                        static_cast<int>(given[1]), static_cast<int>(given[2]), product.gated};
  if (plan.shape < 0) {
    const int shape = price_experts_wgmma_layer(c.product(true), c.product(false), c.gpu()).shape;
    plan = price_experts_wgmma(product, shape, c.gpu()).launch;
  }
  require(plan, product, c.gpu());
  return plan;
}

Kernel kernel_of(const ExpertsCase& c, const ExpertsWgmmaPlan& plan) {
  return c.kernel(plan.shape, [&](auto type, auto values) {
    return emulated<decltype(type), decltype(values)>(plan.shape);
  });
}

void run(const ExpertsCase& c) {
  const ExpertsProduct up = c.product(true), down = c.product(false);
  const ExpertsWgmmaPlan up_plan = plan_of(c, up), down_plan = plan_of(c, down);
  const int block_slots = up_plan.info().tokens;
  if (block_slots != down_plan.info().tokens) std::abort();
  const ExpertsCase::Data data = c.order(block_slots);
  const int64_t most = data.most_slots;
  const auto rows = driver::unwritten<uint16_t>(most * data.x_stride);
  const auto weights = driver::unwritten<float>(most);
  const auto places = driver::unwritten<int32_t>(up.slots());
  const auto h = driver::unwritten<uint16_t>(most * data.h_stride);
  const auto products = driver::unwritten<uint16_t>(most * data.y_stride);
  {
    const UsedByLastKernel used[] = {{data.order_slots.get(), static_cast<size_t>(most)}};
    const experts::Gather gather{data.order,
                                 data.x.get(),
                                 static_cast<int>(data.x_stride),
                                 data.routing.slots,
                                 Divider(static_cast<uint32_t>(c.top_k())),
                                 data.weights.get(),
                                 rows.get(),
                                 weights.get(),
                                 places.get()};
    simt::launch(experts::gather_blocks(most), experts::kGatherThreads, 0, c.seed(),
                 [&] { experts::gather_kernel(gather, static_cast<int>(most)); });
  }
  const auto multiply = [&](const ExpertsProduct& product, const ExpertsWgmmaPlan& plan,
                            const uint16_t* x, int64_t stride, uint16_t* y) {
    experts::WgmmaArguments a{};
    c.set(a, data, product, y);
    a.weights = c.weighs(product) ? weights.get() : nullptr;
    a.gated = product.gated;
    a.cut(plan, product);
    const UsedByLastKernel used[] = {{x, static_cast<size_t>(most * stride)},
                                     {y, static_cast<size_t>(most * a.y_stride)}};
    const TensorMap map = emulated_map({x, most, product.cols, stride, plan.copied_tokens()});
    simt::launch_clusters(plan.cluster(), plan.blocks(), plan.threads(), plan.shared_bytes(),
                          c.seed(), [&, kernel = kernel_of(c, plan)] { kernel(a, map); });
  };
  multiply(up, up_plan, rows.get(), data.x_stride, h.get());
  multiply(down, down_plan, h.get(), data.h_stride, products.get());
  c.finish(data, block_slots, products.get(), most, places.get());
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  ExpertsCase c;
  while (c.read()) run(c);
}
