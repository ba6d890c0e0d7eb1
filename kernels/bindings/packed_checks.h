// SPDX-License-Identifier: Apache-2.0
// What the ops of packed layers ask of their arguments, on every device.
#pragma once
#include <optional>

#include "bindings/torch_stable.h"

namespace flashsparse {

inline void check_sparse_tokens(std::optional<int64_t> sparse_tokens) {
  STD_TORCH_CHECK(sparse_tokens.value_or(0) >= 0,
                  "sparse_tokens must be 0 (unpack for any number of tokens) or more, not ",
                  sparse_tokens.value_or(0));
}

}  // namespace flashsparse
