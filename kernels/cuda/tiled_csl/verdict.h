// SPDX-License-Identifier: Apache-2.0
// What tiled_csl_validate writes for a tile that breaks a rule, instead of its number of nonzeros.
#pragma once
#include <cstdint>

namespace flashsparse::tiled_csl {

inline constexpr int32_t kBadOffsets = -1;
inline constexpr int32_t kPointsOutside = -2;
inline constexpr int32_t kTwoValues = -3;

}  // namespace flashsparse::tiled_csl
