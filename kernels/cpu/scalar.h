// SPDX-License-Identifier: Apache-2.0
// Loads and stores one value of any dtype. For plain sources only: see the rules in README.md for
// the folders of instruction sets.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "common/float16.h"

namespace flashsparse::cpu {

inline int64_t bytes_of(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

inline float load(const void* data, int64_t index, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return static_cast<const float*>(data)[index];
    case Dtype::kFloat16:
      return float_from_float16(static_cast<const uint16_t*>(data)[index]);
    default:
      return float_from_bfloat16(static_cast<const uint16_t*>(data)[index]);
  }
}

// Rounded to the dtype.
inline void store(void* data, int64_t index, float value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      static_cast<float*>(data)[index] = value;
      break;
    case Dtype::kFloat16:
      static_cast<uint16_t*>(data)[index] = float16_from_float(value);
      break;
    default:
      static_cast<uint16_t*>(data)[index] = bfloat16_from_float(value);
  }
}

}  // namespace flashsparse::cpu
