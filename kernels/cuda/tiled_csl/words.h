// SPDX-License-Identifier: Apache-2.0
// A Tiled-CSL weight as its CUDA kernels take it.
#pragma once
#include <cstdint>

namespace flashsparse::tiled_csl {

struct Words {             // device memory
  const uint32_t* words;   // on 16 bytes; proven valid by tiled_csl_validate: locations are trusted
  const int32_t* offsets;  // [tiles + 1]
};

}  // namespace flashsparse::tiled_csl
