// SPDX-License-Identifier: Apache-2.0
// Functions over the values of the 32 lanes of a warp. All lanes call them together.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

__device__ __forceinline__ uint32_t lanes_below(int lane) { return (1u << lane) - 1; }

// Combines the values of all lanes; every lane gets the result.
template <typename Value, typename Combine>
__device__ __forceinline__ Value reduce_lanes(Value value, Combine combine) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// The lanes whose value is greater than this lane's, and those whose value is equal.
struct LaneOrder {
  uint32_t more, equal;  // one bit for each lane
};

// Values have `bits` bits. Lanes that are not in `among` are in neither set.
template <int bits>
__device__ __forceinline__ LaneOrder order_of_lanes(uint32_t value, uint32_t among = kAllLanes) {
  LaneOrder order{0, among};
  FS_UNROLL
  for (int bit = bits - 1; bit >= 0; --bit) {
    const bool own = value >> bit & 1;
    const uint32_t set = __ballot_sync(kAllLanes, own);
    order.more |= own ? 0 : order.equal & set;
    order.equal &= own ? set : ~set;
  }
  return order;
}

}  // namespace flashsparse
