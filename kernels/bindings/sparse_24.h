// SPDX-License-Identifier: Apache-2.0
// What the ops of sparse_24 ask of their arguments. No word of the units is an address: whatever
// they hold, no kernel leaves its bounds.
#pragma once
#include "bindings/packed.h"
#include "formats/sparse_24.h"

namespace flashsparse {

inline void check_sparse_24(const Tensor& units, int64_t out, int64_t in) {
  check_tensor(units, "units", ScalarType::Int, 3);
  check_shape(out, in);
  const int64_t down = sparse_24::unit_rows(out), across = sparse_24::unit_cols(in);
  FS_CHECK(
      units.size(0) == down && units.size(1) == across && units.size(2) == sparse_24::kUnitWords,
      "units of a [", out, ", ", in, "] weight are [", down, ", ", across, ", ",
      int64_t{sparse_24::kUnitWords}, "], not [", units.size(0), ", ", units.size(1), ", ",
      units.size(2), "]");
  FS_CHECK(down * across <= INT32_MAX, "a [", out, ", ", in, "] weight has too many units of ",
           "sparse_24: split the layer or leave it dense");
  FS_CHECK(reinterpret_cast<uintptr_t>(units.const_data_ptr()) % 16 == 0,
           "units must start on 16 bytes: pass a tensor of its own and not a slice, ",
           "e.g. units.clone()");
}

}  // namespace flashsparse
