// SPDX-License-Identifier: Apache-2.0
// Launches as the ops pass them: numbers, in the order of `launch_fields`. Planners answer with
// them (plan.h), and benchmarks give them in place of the planned ones (override.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "cuda/plan/kernel.h"

namespace flashsparse {

inline const char* name_of(Kernel kernel) {
  constexpr const char* kNames[] = {"sparse", "few", "many", "packed", "library"};
  return kNames[static_cast<int>(kernel)];
}

// Of a planner's launches: kFields has the names of the numbers, and of(plan) refers to them. A
// format specializes it beside its argument checks.
template <class Plan>
struct LaunchNumbers;

template <class Plan>
std::vector<int64_t> numbers_of(Plan plan) {
  return std::apply([](auto&... own) { return std::vector<int64_t>{own...}; },
                    LaunchNumbers<Plan>::of(plan));
}

template <class Plan>
void set_numbers(Plan& plan, const std::vector<int64_t>& numbers) {
  const auto set = [&](auto&... own) {
    FS_CHECK(numbers.size() == sizeof...(own), "a launch has ", sizeof...(own), " numbers (",
             LaunchNumbers<Plan>::kFields, "), not ", numbers.size());
    std::size_t next = 0;
    ((own = static_cast<int>(numbers[next++])), ...);
  };
  std::apply(set, LaunchNumbers<Plan>::of(plan));
}

}  // namespace flashsparse
