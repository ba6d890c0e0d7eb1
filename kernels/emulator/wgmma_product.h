// SPDX-License-Identifier: Apache-2.0
// Runs a wgmma kernel of a format that has units, and writes y to stdout.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/tensor_map.h"
#include "emulator/driver.h"

namespace flashsparse {

// `arguments` have the weight, bias, and scales of x if there are any; `x` is what they multiply.
template <class Kernel, class Arguments, class Plan>
void run_wgmma(Kernel kernel, Arguments arguments, const Plan& plan, const TiledMatrix& x,
               int64_t rows, int64_t cols, int64_t seed) {
  const int64_t tokens = x.rows, floats = plan.partial_floats(rows, tokens);
  const int64_t counters = plan.arrivals(rows, tokens);
  const auto y = driver::unwritten<uint16_t>(tokens * rows);
  const auto partials = driver::unwritten<float>(floats);
  const auto arrivals = driver::device_array<uint32_t>(counters);
  std::memset(arrivals.get(), 0, counters * sizeof(uint32_t));
  arguments.y = y.get();
  arguments.partials = partials.get();
  arguments.arrivals = arrivals.get();
  arguments.rows = static_cast<int>(rows);
  arguments.cols = static_cast<int>(cols);
  arguments.tokens = static_cast<int>(tokens);
  arguments.cut(plan);
  const TensorMap map = emulated_map(x);
  const simt::UsedByLastKernel used[] = {
      {x.data, static_cast<size_t>(tokens * x.stride)},
      {arguments.x_scales, static_cast<size_t>(arguments.x_scales ? tokens : 0)},
      {y.get(), static_cast<size_t>(tokens * rows)},
      {partials.get(), static_cast<size_t>(floats)},
      {arrivals.get(), static_cast<size_t>(counters)}};
  simt::launch_clusters(plan.cluster(), plan.blocks(), plan.threads(), plan.shared_bytes(),
                        static_cast<unsigned>(seed), [&] { kernel(arguments, map); });
  for (int64_t i = 0; i < counters; ++i) {
    if (arrivals[i] != 0) std::abort();  // must be reset
  }
  driver::write(y.get(), tokens * rows);
}

}  // namespace flashsparse
