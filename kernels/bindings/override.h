// SPDX-License-Identifier: Apache-2.0
// Launches that a benchmark gives to the products of its thread, in place of the planned ones. The
// ops override_launch and end_override set them; flashsparse_plugin/ops/plan.py is their interface.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/launch.h"

namespace flashsparse {

struct GivenLaunch {
  std::string kernel;  // <format>.<kernel>
  std::vector<int64_t> numbers;
  int64_t launches = 0;  // so far
};

// Those of this thread, the innermost last.
inline std::vector<GivenLaunch>& given_launches() {
  static thread_local std::vector<GivenLaunch> given;
  return given;
}

// The innermost one for a kernel, or for any kernel of a format; or null.
inline GivenLaunch* given_launch(std::string_view name) {
  std::vector<GivenLaunch>& given = given_launches();
  for (auto each = given.rbegin(); each != given.rend(); ++each) {
    const std::string_view kernel = each->kernel;
    if (kernel.substr(0, name.size()) == name &&
        (kernel.size() == name.size() || kernel[name.size()] == '.'))
      return &*each;
  }
  return nullptr;
}

inline void override_launch(const std::string& kernel, const std::vector<int64_t>& numbers) {
  constexpr int64_t kMost = 1 << 20;  // rules can multiply such numbers
  for (const int64_t number : numbers) {
    FS_CHECK(number >= 0 && number <= kMost, kernel, ": a launch has no number like ", number);
  }
  given_launches().push_back({kernel, numbers});
}

// Ends the innermost one, and returns how many launches it had.
inline int64_t end_override() {
  FS_CHECK(!given_launches().empty(), "no launch is given on this thread");
  const int64_t launches = given_launches().back().launches;
  given_launches().pop_back();
  return launches;
}

// The kernel of a product: that of the launch given for the format, which must be one of `able`; or
// else choose(), or unpacking where x does not have the dtype of the weight.
template <class Choose>
Kernel chosen_kernel(const std::string& format, std::initializer_list<Kernel> able, bool same_dtype,
                     const Choose& choose) {
  const GivenLaunch* const given = given_launch(format);
  if (!given) return same_dtype ? choose() : Kernel::kUnpacked;
  FS_CHECK(same_dtype, given->kernel, " multiplies x in the dtype of the weight only");
  std::string names;
  for (const Kernel kernel : able) {
    const std::string name = format + "." + name_of(kernel);
    if (given->kernel == name) return kernel;
    names += (names.empty() ? "" : ", ") + name;
  }
  fail(given->kernel, " does not multiply these values. Remedy: ", names);
}

// The launch of a product by a chosen kernel: the one given for the format, or else planned();
// rule(plan) says what it breaks, if anything. `plan` has the members that no number is for.
template <class Plan, class Planned, class Rule>
Plan launch_of(const char* format, int64_t rows, int64_t cols, int64_t tokens, Plan plan,
               const Planned& planned, const Rule& rule) {
  GivenLaunch* const given = given_launch(format);
  if (given) {
    set_numbers(plan, given->numbers);
    ++given->launches;
  } else {
    plan = planned();
  }
  const char* const broken = rule(plan);
  if (!broken) return plan;
  std::string numbers;
  for (const int64_t number : numbers_of(plan)) numbers += " " + std::to_string(number);
  FS_CHECK(!given, given->kernel, " cannot multiply ", tokens, " tokens by a [", rows, ", ", cols,
           "] weight with the launch", numbers, " (", LaunchNumbers<Plan>::kFields, "): ", broken,
           ". Remedy: a launch of candidates()");
  fail("no launch for ", tokens, " tokens of a [", rows, ", ", cols, "] weight: ", broken,
       ". Remedy: ", format, "_linear with sparse_tokens=0, which unpacks it");
}

}  // namespace flashsparse
