// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers of sparse_24's experts: a case on stdin, the order of slots, both grouped
// products by a driver's own kernel, and the sum of each token's slots.
//   case    int64 tokens, top_k, experts, known, has_map, hidden, intermediate, bfloat16, seed,
//           value type, group, id_words, has_bias, weights_on_input, multiprocessors, shared_bytes,
//           then twice, of the first product and the second, five numbers of a launch, of which the
//           last is its shape, or -1 to let the host plan for a GPU with these multiprocessors and
//           bytes of shared memory; float32 alpha, up_offset, limit; int32 ids[slots * id_words],
//           map[known] if it has one; float32 weights[slots]; of each product int32 units, float32
//           scales of rows if values have them, and uint16 bias if it has one; uint16
//           x[tokens * stride], stride = hidden rounded up to a multiple of 8
//   answer  int32 slots of a block, order.slots, order.experts, order.blocks; uint16
//           y[tokens * hidden]
#pragma once
#include "cuda/experts/order.cuh"
#include "cuda/experts/sum.cuh"
#include "cuda/sparse_24/experts_plan.h"
#include "cuda/sparse_24/values.cuh"
#include "emulator/driver.h"

namespace flashsparse::sparse_24 {

using driver::DeviceArray;
using simt::UsedByLastKernel;

inline int64_t ceil8(int64_t count) { return (count + 7) / 8 * 8; }

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

// A layer on its way through the kernels.
struct ExpertsCase {
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

  // The numbers of a product's launch; the shape is the last of five.
  const int64_t* given(const ExpertsProduct& product) const {
    return header + (product.gated ? 16 : 21);
  }

  // find(type, values) for the types of this case; ends the program where it is null.
  template <class Find>
  auto kernel(int shape, const Find& find) const {
    const auto found = with_values(product(true).unit, [&](auto values) {
      return bfloat16() ? find(BFloat16{}, values) : find(Float16{}, values);
    });
    if (found) return found;
    std::fprintf(stderr, "shape %d is not emulated for these values\n", shape);
    std::exit(1);
  }

  // What is read, and what the kernels write.
  struct Data {
    DeviceArray<float> numbers;
    DeviceArray<int32_t> ids, map;
    DeviceArray<float> weights;
    Weight w13, w2;
    DeviceArray<uint16_t> x;
    DeviceArray<int32_t> order_slots, order_experts, order_blocks, order_spans;
    experts::Routing routing;
    experts::Order order;
    int64_t most_slots, most_blocks, x_stride, h_stride, y_stride;

    experts::Activation activation() const { return {numbers[0], numbers[1], numbers[2]}; }
  };

  // Reads the tensors and puts slots into their order.
  Data order(int block_slots) const {
    const ExpertsProduct up = product(true), down = product(false);
    const int64_t slots = up.slots(), known = header[3], id_words = header[11];
    auto numbers = driver::read<float>(3);
    auto ids = driver::read<int32_t>(slots * id_words);
    auto map = driver::read<int32_t>(header[4] ? known : 0);
    auto weights = driver::read<float>(slots);
    Weight w13(up, has_bias()), w2(down, has_bias());
    auto x = driver::read<uint16_t>(tokens() * ceil8(up.cols));
    const int64_t most_slots = experts::most_slots(slots, up.experts, block_slots);
    const int64_t most_blocks = experts::most_blocks(slots, up.experts, block_slots);
    Data data{std::move(numbers),
              std::move(ids),
              std::move(map),
              std::move(weights),
              std::move(w13),
              std::move(w2),
              std::move(x),
              driver::unwritten<int32_t>(most_slots),
              driver::unwritten<int32_t>(most_blocks),
              driver::unwritten<int32_t>(1),
              driver::unwritten<int32_t>(2 * most_blocks),
              {},
              {},
              most_slots,
              most_blocks,
              ceil8(up.cols),
              ceil8(up.rows),
              ceil8(down.rows)};
    data.routing = {
        data.ids.get(),          static_cast<int>(id_words), header[4] ? data.map.get() : nullptr,
        static_cast<int>(slots), static_cast<int>(known),    static_cast<int>(up.experts)};
    data.order = {data.order_slots.get(), data.order_experts.get(), data.order_blocks.get(),
                  data.order_spans.get()};
    simt::launch(1, experts::order_threads(data.routing.experts), 0, seed(), [&] {
      experts::order_kernel(data.routing, data.order, block_slots, static_cast<int>(most_slots),
                            static_cast<int>(most_blocks));
    });
    return data;
  }

  // What the arguments of both kernels have in common.
  template <class Arguments>
  void set(Arguments& a, const Data& data, const ExpertsProduct& product, uint16_t* y) const {
    const Weight& weight = product.gated ? data.w13 : data.w2;
    a.units = weight.units.get();
    a.scales = product.unit.has_row_scales() ? weight.scales.get() : nullptr;
    a.bias = has_bias() ? weight.bias.get() : nullptr;
    a.y = y;
    a.y_stride = static_cast<int>(product.gated ? data.h_stride : data.y_stride);
    a.order = data.order;
    a.slots = data.routing.slots;
    a.rows = static_cast<int>(product.rows);
    a.cols = static_cast<int>(product.cols);
    a.activation = data.activation();
  }
  bool weighs(const ExpertsProduct& product) const { return (header[13] != 0) == product.gated; }

  // Adds up the products of `count` rows, and answers.
  void finish(const Data& data, int block_slots, const uint16_t* products, int64_t count,
              const int32_t* places) const {
    const ExpertsProduct down = product(false);
    const auto y = driver::unwritten<uint16_t>(tokens() * down.rows);
    {
      const UsedByLastKernel used[] = {{products, static_cast<size_t>(count * data.y_stride)},
                                       {y.get(), static_cast<size_t>(tokens() * down.rows)}};
      const auto sum = places ? (bfloat16() ? experts::sum_kernel<BFloat16, true>
                                            : experts::sum_kernel<Float16, true>)
                              : (bfloat16() ? experts::sum_kernel<BFloat16, false>
                                            : experts::sum_kernel<Float16, false>);
      simt::launch(simt::dim3(tokens(), experts::sum_blocks(down.rows)), experts::kSumThreads,
                   seed(), [&] {
                     sum(data.routing, static_cast<int>(top_k()), places, products,
                         static_cast<int>(data.y_stride), static_cast<int>(down.rows), y.get());
                   });
    }
    driver::write(&block_slots, 1);
    driver::write(data.order_slots.get(), data.most_slots);
    driver::write(data.order_experts.get(), data.most_blocks);
    driver::write(data.order_blocks.get(), 1);
    driver::write(y.get(), tokens() * down.rows);
  }
};

// Ends the program if a plan breaks a rule.
template <class Plan>
void require(const Plan& plan, const ExpertsProduct& product, const Gpu& gpu) {
  const char* const rule = plan.broken_rule(product, gpu);
  if (!rule) return;
  std::fprintf(stderr, "%s\n", rule);
  std::exit(1);
}

}  // namespace flashsparse::sparse_24
