// SPDX-License-Identifier: Apache-2.0
// Multiplies by kernels of a made-up format, whose launches may be given; test_override.py asks.
// Each line of stdin is one of
//   give KERNEL NUMBERS   as the op override_launch
//   end                   as the op end_override: prints how many launches took the innermost
//   multiply DTYPE        prints the kernel and its launch; "thread" before it: on another thread
// and an error is printed.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <thread>

#include "bindings/override.h"

namespace flashsparse {

struct ToyPlan {
  int shape, blocks;
  int item = 0;  // which no number is for
};

template <>
struct LaunchNumbers<ToyPlan> {
  static constexpr const char* kFields = "shape blocks";
  static auto of(ToyPlan& plan) { return std::tie(plan.shape, plan.blocks); }
};

namespace {

void multiply(bool same_dtype) {
  const auto choose = [] { return Kernel::kMany; };
  const Kernel kernel = chosen_kernel("toy", {Kernel::kFew, Kernel::kMany}, same_dtype, choose);
  std::printf("%s", name_of(kernel));
  if (kernel != Kernel::kUnpacked) {
    const ToyPlan plan = launch_of(
        "toy", 300, 200, 8, ToyPlan{0, 0, 2}, [] { return ToyPlan{7, 66, 2}; },
        [](const ToyPlan& own) { return own.blocks > 132 ? "too many blocks" : nullptr; });
    std::printf(" %d %d %d", plan.shape, plan.blocks, plan.item);
  }
  std::printf("\n");
}

void run(std::istringstream words) {
  std::string verb, name;
  words >> verb;
  try {
    if (verb == "thread") {
      std::string rest;
      std::getline(words, rest);
      std::thread([&] { run(std::istringstream(rest)); }).join();
    } else if (verb == "give") {
      std::vector<int64_t> numbers;
      words >> name;
      for (int64_t number; words >> number;) numbers.push_back(number);
      override_launch(name, numbers);
    } else if (verb == "end") {
      std::printf("%d\n", static_cast<int>(end_override()));
    } else {
      words >> name;
      multiply(name == "same");
    }
  } catch (const std::runtime_error& error) {
    std::printf("%s\n", error.what());
  }
}

}  // namespace
}  // namespace flashsparse

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    flashsparse::run(std::istringstream(line));
  }
}
