// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows, as one multiplication: a GPU has no instruction to
// divide integers, and the dozens that stand in for it would delay the first load of a kernel that
// takes a few microseconds.
//
// With 2^p >= divisor and multiplier = ceil(2^(31 + p) / divisor), floor(n / divisor) is
// n * multiplier / 2^(31 + p) for all n below 2^31 (Granlund and Montgomery, "Division by invariant
// integers using multiplication", 1994).
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse {

class Divider {
 public:
  // 1 <= divisor < 2^31.
  constexpr explicit Divider(uint32_t divisor) {
    while (uint64_t{1} << shift_ < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + divisor - 1) / divisor);
  }

  // floor(n / divisor) for n < 2^31.
  FS_HOST_DEVICE constexpr uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{2 * n} * multiplier_ >> 32) >> shift_;
  }

 private:
  uint32_t multiplier_ = 0, shift_ = 0;
};

}  // namespace flashsparse
