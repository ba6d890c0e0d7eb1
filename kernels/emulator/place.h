// SPDX-License-Identifier: Apache-2.0
// A source location in a kernel, for messages, statistics and static shared arrays.
#pragma once
#include <cstring>
#include <tuple>

namespace simt {

struct Place {
  const char* file;
  int line;

  // As a default argument: the location of the call.
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }

  const char* file_name() const {
    const char* const slash = std::strrchr(file, '/');
    return slash ? slash + 1 : file;
  }

  friend bool operator==(const Place& a, const Place& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
  }
  friend bool operator!=(const Place& a, const Place& b) { return !(a == b); }
  friend bool operator<(const Place& a, const Place& b) {
    if (a.line != b.line) return a.line < b.line;
    return a.file != b.file && std::strcmp(a.file, b.file) < 0;
  }
};

}  // namespace simt
