// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of Tiled-CSL, on every device. Contents are validated by
// tiled_csl_validate, once, at load.
#pragma once
#include "bindings/packed.h"
#include "formats/tiled_csl.h"

namespace flashsparse {

inline void check_tiled_csl(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in) {
  check_tensor(words, "weight_packed", ScalarType::Int, 1);
  check_tensor(offsets, "tile_offsets", ScalarType::Int, 1);
  check_beside(offsets, "tile_offsets", words, "weight_packed");
  check_shape(out, in);
  const int64_t tiles = tiled_csl::tile_rows(out) * tiled_csl::tile_cols(in);
  FS_CHECK(offsets.numel() == tiles + 1, "tile_offsets of a [", out, ", ", in, "] weight has ",
           tiles + 1, " entries, not ", offsets.numel());
  FS_CHECK(words.numel() <= INT32_MAX && tiles <= INT32_MAX, "a [", out, ", ", in, "] weight of ",
           words.numel(), " packed words is beyond the int32 offsets of ",
           "tiled_csl: split the layer or leave it dense");
}

// While packing, after the words have been counted.
inline void check_word_count(int64_t words, int64_t out, int64_t in) {
  FS_CHECK(words <= INT32_MAX, "a [", out, ", ", in, "] weight with ", words,
           " packed words overflows the int32 offsets of tiled_csl: split the ",
           "layer or leave it dense");
}

}  // namespace flashsparse
