// SPDX-License-Identifier: Apache-2.0
// Argument checks of ops on quantized weights.
#pragma once
#include <string>

#include "bindings/torch_stable.h"
#include "formats/value_type.h"

namespace flashsparse {

inline ValueType value_type_of(const std::string& name) {
  if (name == "int8") return ValueType::kInt8;
  if (name == "int4") return ValueType::kInt4;
  if (name == "fp8_e4m3") return ValueType::kFp8;
  FS_CHECK(name == "native", "value_type must be native, fp8_e4m3, int8 or int4, not ", name);
  return ValueType::kNative;
}

}  // namespace flashsparse
