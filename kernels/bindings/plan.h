// SPDX-License-Identifier: Apache-2.0
// What the ops `plan`, `candidates` and `choose_kernel` ask of the planners in kernels/cuda, which
// need no GPU. A format adds its planners in plan_<format>_cpu.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/codes.h"
#include "bindings/launch.h"
#include "cuda/plan/kernel.h"
#include "cuda/plan/search.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::planning {

// A product of a weight [rows, cols] and some tokens.
struct Product {
  int64_t rows, cols, tokens;
  int64_t nbytes;                      // of the packed weight; of a dense one 0
  int64_t n, m, vector_length, group;  // of its pattern and scales, 0 where there are none
  std::string values;                  // the option `values`, by name
  bool quantizes_x;                    // to the same type
  int64_t experts = 0, top_k = 0;      // of a mixture: the weight is of one expert, nbytes of all

  Product with_tokens(int64_t count) const {
    Product other = *this;
    other.tokens = count;
    return other;
  }
};

// The numbers of a launch, in the order of its planner's `fields`, and the microseconds that the
// product should take by it.
struct Launch {
  std::vector<int64_t> numbers;
  double microseconds;
};

// The shapes that a kernel is compiled in: the names of their numbers, and those of each, in the
// order of the numbers that launches have for them.
struct Shapes {
  const char* fields;
  std::vector<std::vector<int64_t>> all;
};

// Of a header's list: numbers(info) has those of an entry.
template <class Infos, class Numbers>
Shapes shapes_of(const char* fields, const Infos& infos, const Numbers& numbers) {
  Shapes shapes{fields, {}};
  for (const auto& info : infos) shapes.all.push_back(numbers(info));
  return shapes;
}

struct Planner {
  const char* kernel;  // <format>.<kernel>
  const char* fields;  // names of a launch's numbers, of which the first is that of its shape
  Shapes (*shapes)();
  // The planned launch: first of all launches that the product needs, whose microseconds it has.
  Launch (*plan)(const Product&, const Gpu&);
  // Every launch that the planner compares for the product, or for the first part of it that one
  // launch takes.
  std::vector<Launch> (*candidates)(const Product&, const Gpu&);
};

struct Format {
  const char* name;
  // The kernel that its op takes, within limits that a table measured.
  Kernel (*choose)(const Product&, const Gpu&, const TokenLimits&);
  std::vector<Planner> planners;
};

// A format's planners, defined in plan_<format>_cpu.cpp.
Format dense_planners();
Format exact_units_planners();
Format hybrid_units_planners();
Format nm_gather_planners();
Format nm_spmm_planners();
Format sparse_24_planners();
Format sparse_24_experts_planners();
Format tiled_bitmap_planners();
Format tiled_csl_planners();

// Microseconds of a launch from its planner's cost, which was fitted to compare launches of one
// product: an offset, a share for each token, and a factor. Fitted to launches after another kernel
// on an H200 and an H100 (layers.csv; docs/evaluate.md has the errors). Another GPU needs the same
// clocks, at its rate, and reads the weight from its own memory.
struct Fit {
  double offset, token, factor;
  // Whether the cost leaves out what memory takes: the longer of both counts, and where they are
  // near each other a little of the other, too.
  bool beside_memory = false;

  double microseconds(double cost, int64_t tokens, int64_t bytes, const Gpu& gpu) const {
    const double clocks = factor * cost * kGpus[0].gpu.clock / gpu.clock;
    const double memory = static_cast<double>(bytes) / gpu.memory;
    const double longer = beside_memory ? std::pow(std::pow(clocks, 4) + std::pow(memory, 4), 0.25)
                                        : std::max(clocks, memory);
    return offset + token * static_cast<double>(tokens) + longer;
  }
};

// Of a GPU, for a cost that has its memory in it: a slower clock does not slow that down, but Fit
// scales all of a cost by the clock.
inline Gpu as_costed(const Gpu& gpu) {
  Gpu other = gpu;
  other.bus *= kGpus[0].gpu.clock / gpu.clock;
  other.memory *= kGpus[0].gpu.clock / gpu.clock;
  return other;
}

// The launch for a GPU and its cost, of such a cost; price(gpu) searches.
template <class Price>
auto priced_as_costed(const Gpu& gpu, const Price& price) {
  auto found = price(gpu);
  found.cost = price(as_costed(gpu)).cost;
  return found;
}

// The launch of a product whose launches take up to `most` tokens. For some tokens fit(tokens) is
// the fit, and price(tokens) the launch and its cost.
template <class FitOf, class Price>
Launch planned(const Product& product, const Gpu& gpu, int64_t most, const FitOf& fit,
               const Price& price) {
  Launch first{{}, 0};
  for (int64_t begin = 0; begin < product.tokens; begin += most) {
    const int64_t tokens = std::min(most, product.tokens - begin);
    const auto [launch, cost] = price(tokens);
    FS_CHECK(cost >= 0, "no launch is legal for ", tokens, " tokens of a [", product.rows, ", ",
             product.cols, "] weight");
    if (begin == 0) first.numbers = numbers_of(launch);
    first.microseconds += fit(tokens).microseconds(cost, tokens, product.nbytes, gpu);
  }
  return first;
}

// The launches that were compared for up to `most` tokens: list(tokens).
template <class FitOf, class List>
std::vector<Launch> compared(const Product& product, const Gpu& gpu, int64_t most, const FitOf& fit,
                             const List& list) {
  const int64_t tokens = std::min(most, product.tokens);
  std::vector<Launch> found;
  for (const auto& [launch, cost] : list(tokens)) {
    found.push_back(
        {numbers_of(launch), fit(tokens).microseconds(cost, tokens, product.nbytes, gpu)});
  }
  return found;
}

}  // namespace flashsparse::planning
