// SPDX-License-Identifier: Apache-2.0
// Whether accumulators are multiplied by a scale of their token before bias is added.
#pragma once
#include "common/host_device.h"
#include "formats/value_type.h"

namespace flashsparse {

enum class TokenScales {
  kNone,      // native values: activations are never quantized
  kOptional,  // quantized values by 16-bit x: where x holds codes of quantized tokens, else null
  kAlways,    // x is 8-bit codes
};

// By the type of the weight's values and the bytes of an element of x.
FS_HOST_DEVICE constexpr TokenScales token_scales_of(ValueType values, int x_bytes) {
  if (x_bytes == 1) return TokenScales::kAlways;
  return values == ValueType::kNative ? TokenScales::kNone : TokenScales::kOptional;
}

}  // namespace flashsparse
