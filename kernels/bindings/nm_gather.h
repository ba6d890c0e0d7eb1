// SPDX-License-Identifier: Apache-2.0
// What the ops of nm_gather ask of their arguments. What the tensors hold is proven by the format's
// `check`, or follows from nm_vector's.
#pragma once
#include "bindings/nm_vector.h"
#include "formats/nm_gather.h"

namespace flashsparse {

inline nm_gather::Layout check_gather_pattern(int64_t n, int64_t m, int64_t vector_length) {
  check_pattern(n, m, vector_length);
  const auto layout = nm_gather::layout_of(static_cast<int>(n), static_cast<int>(m),
                                           static_cast<int>(vector_length));
  FS_CHECK(layout.panel_columns > 0, "nm_gather cannot hold ", n, ":", m, " in vectors of ",
           vector_length, " rows: pack to nm_vector");
  return layout;
}

inline void check_nm_gather(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                            const nm_gather::Layout& layout) {
  check_tensor(values, "gather_values", ScalarType::Short, 3);
  check_tensor(index, "gather_index", ScalarType::Byte, 3);
  check_beside(index, "gather_index", values, "gather_values");
  check_shape(out, in);
  FS_CHECK(out <= INT32_MAX - 1024 && in <= INT32_MAX - 1024, "a [", out, ", ", in,
           "] weight is too large for nm_gather");
  const int64_t units = layout.units(out), pairs = layout.pairs(in), groups = layout.groups(out);
  const int64_t row = layout.unit_rows * nm_gather::kPair;
  FS_CHECK(values.size(0) == units && values.size(1) == pairs && values.size(2) == row,
           "gather_values of a [", out, ", ", in, "] weight must be [", units, ", ", pairs, ", ",
           row, "]");
  FS_CHECK(index.size(0) == groups && index.size(1) == pairs && index.size(2) == nm_gather::kPair,
           "gather_index of a [", out, ", ", in, "] weight must be [", groups, ", ", pairs, ", ",
           nm_gather::kPair, "]");
}

}  // namespace flashsparse
