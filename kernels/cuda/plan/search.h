// SPDX-License-Identifier: Apache-2.0
// The search that all planners share: the cheapest of a product's legal launches, which is cached.
//
// A planner provides for_each(body), which calls body(launch, cost) for each legal launch. The unit
// of the cost does not matter: only launches of one product are compared.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"

namespace flashsparse {

// The first of the cheapest launches; `none` at cost -1 if no launch is legal.
template <class Launch, class ForEach>
Priced<Launch> cheapest(const ForEach& for_each, const Launch& none = {}) {
  Priced<Launch> best{none, -1};
  for_each([&](const Launch& launch, double cost) {
    if (best.cost < 0 || cost < best.cost) best = {launch, cost};
  });
  return best;
}

// All legal launches, in the order of for_each.
template <class Launch, class ForEach>
std::vector<Priced<Launch>> listed(const ForEach& for_each) {
  std::vector<Priced<Launch>> all;
  for_each([&](const Launch& launch, double cost) { all.push_back({launch, cost}); });
  return all;
}

// find(), called once per product and GPU, since a search takes longer than a launch. Each call
// site has a cache of its own, since the type of its `find` is unique. `product` is all that find()
// reads beside the GPU, whose rates count, too: two GPUs may differ in nothing else.
template <std::size_t kNumbers, class Find>
auto remembered(const std::array<int64_t, kNumbers>& product, const Gpu& gpu, const Find& find) {
  static std::mutex mutex;
  static std::map<std::pair<std::array<int64_t, kNumbers>, decltype(gpu.members())>,
                  decltype(find())>
      known;
  const std::pair key{product, gpu.members()};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto place = known.find(key);
  return place != known.end() ? place->second : known.emplace(key, find()).first->second;
}

}  // namespace flashsparse
