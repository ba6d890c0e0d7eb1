// SPDX-License-Identifier: Apache-2.0
// What the 32 lanes of a warp learn of each other's values. All lanes call these together.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

__device__ __forceinline__ uint32_t lanes_below(int lane) { return (1u << lane) - 1; }

// combine(value of lane 0, ..., value of lane 31), in every lane.
template <typename Value, typename Combine>
__device__ __forceinline__ Value reduce_lanes(Value value, Combine combine) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Lanes by how their values compare with that of this lane.
struct LaneOrder {
  uint32_t more, equal;  // a set bit for each
};

// The values have `bits` bits; lanes that are not in `among` are in neither set.
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
