// SPDX-License-Identifier: Apache-2.0
// Arguments of the wgmma kernels besides the tensor map of x, all of them device memory.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::mma_units {

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype; accumulated in fp32, or in int32 for int8 by int8.
struct WgmmaArguments {
  const uint32_t* units;  // 16-byte aligned
  const float* scales;    // of rows, by which sums are multiplied; or null, where there are none
  const float* x_scales;  // [tokens]; null for 1, unless x is 8-bit codes
  const uint16_t* bias;   // or null
  uint16_t* y;            // 4-byte aligned
  float* partials;        // workspace: plan.partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;     // arrival counters, plan.arrivals(), all zero before and after
  int rows, cols;         // of the weight
  int tokens;
  int down, depth, stages;  // of the plan (wgmma_shape.h)
  int weight_stages;        // of a ring of weights, if there is one

  FS_HOST_DEVICE constexpr int cluster() const { return down * depth; }  // blocks
};

}  // namespace flashsparse::mma_units
