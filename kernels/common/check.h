// SPDX-License-Identifier: Apache-2.0
// Errors for users: a message, without the place in this source.
#pragma once
#include <sstream>
#include <stdexcept>

namespace flashsparse {

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

#define FS_CHECK(condition, ...) \
  if (!(condition)) ::flashsparse::fail(__VA_ARGS__)

}  // namespace flashsparse
