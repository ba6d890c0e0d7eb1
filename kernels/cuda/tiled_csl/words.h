// SPDX-License-Identifier: Apache-2.0
// A Tiled-CSL weight as its CUDA kernels read it.
#pragma once
#include <cstdint>

namespace flashsparse::tiled_csl {

struct Words {            // device memory
  const uint32_t* words;  // 16-byte aligned; validated by tiled_csl_validate: locations are trusted
  const int32_t* offsets;  // [tiles + 1]
};

}  // namespace flashsparse::tiled_csl
