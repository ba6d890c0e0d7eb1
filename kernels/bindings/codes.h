// SPDX-License-Identifier: Apache-2.0
// Argument checks of ops on quantized weights.
#pragma once
#include <string>

#include "bindings/torch_stable.h"
#include "formats/value_type.h"

namespace flashsparse {

inline ValueType value_type_of(const std::string& name) {
#define FS_OPTION(type, option, bits) \
  if (name == option) return ValueType::k##type;
  FS_QUANTIZED_TYPES(FS_OPTION)
#undef FS_OPTION
#define FS_OR(type, option, bits) " or " option
  FS_CHECK(name == "native", "value_type must be native" FS_QUANTIZED_TYPES(FS_OR) ", not ", name);
#undef FS_OR
  return ValueType::kNative;
}

}  // namespace flashsparse
