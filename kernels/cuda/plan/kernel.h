// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a packed weight: the answer of every format's choose_kernel, by which the
// op launches and by which the planner estimates.
#pragma once
#include <cstdint>
#include <optional>

namespace flashsparse {

enum class Kernel {
  kSparse,    // the format's only kernel
  kFew,       // its kernel for few tokens (decode)
  kMany,      // its kernel for many tokens (prefill)
  kPacked,    // the same, where it reads x by the columns that a row tile keeps
  kUnpacked,  // unpacks the weight for the library
};

// The most tokens that the sparse kernels, and of them the one for few tokens, are used for, where
// the caller has measured it (flashsparse_plugin/dataflow). What is empty is the format's own rule.
struct TokenLimits {
  std::optional<int64_t> sparse, few;
};

}  // namespace flashsparse
