// SPDX-License-Identifier: Apache-2.0
// What tiled_bitmap_validate says of a unit that breaks a rule, in place of its number of values.
#pragma once
#include <cstdint>

namespace flashsparse::tiled_bitmap {

inline constexpr int32_t kBadOffsets = -1;
inline constexpr int32_t kKeepsOutside = -2;
inline constexpr int32_t kSharedColumn = -3;
inline constexpr int32_t kLeavesColumn = -4;

}  // namespace flashsparse::tiled_bitmap
