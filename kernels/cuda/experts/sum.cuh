// SPDX-License-Identifier: Apache-2.0
// Adds up the products of the slots of each token, in their order, in fp32.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/experts/routing.h"

namespace flashsparse::experts {

inline constexpr int kSumThreads = 128;

// Blocks of a token.
constexpr int sum_blocks(int64_t columns) {
  return static_cast<int>((columns + 8 * kSumThreads - 1) / (8 * kSumThreads));
}

// y [tokens, columns] = the sums of products [slots][stride], without those of slots that no local
// expert has: nothing has written these. If has_places, products are [places][stride] and `places`
// [slots] has the one of each slot. stride is a multiple of 8, products are 16-byte aligned. Launch
// with tokens x sum_blocks(columns) blocks of kSumThreads.
template <class Type, bool has_places>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const Routing routing, const int top_k, const int32_t* const places,
               const uint16_t* const products, const int stride, const int columns,
               uint16_t* const y) {
  const int token = blockIdx.x;
  const int column = (blockIdx.y * kSumThreads + threadIdx.x) * 8;
  griddepcontrol_wait();
  if (column >= columns) return;
  float sums[8] = {};
  FS_UNROLL_BY(4)
  for (int j = 0; j < top_k; ++j) {
    const int slot = token * top_k + j;
    if (routing.expert_of(slot) < 0) continue;
    const int64_t row = has_places ? places[slot] : slot;
    const uint16_t* const from = products + (row * stride + column);
    const uint4 values = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      sums[i] += to_float<Type>(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
    }
  }
  uint16_t* const to = y + (int64_t{token} * columns + column);
  uint32_t two[4];
  FS_UNROLL
  for (int i = 0; i < 4; ++i) two[i] = from_floats<Type>(sums[2 * i], sums[2 * i + 1]);
  if (columns % 8 == 0) {
    store_global(reinterpret_cast<uint4*>(to), make_uint4(two[0], two[1], two[2], two[3]));
  } else {
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (column + i < columns)
        store_global(to + i, static_cast<uint16_t>(two[i / 2] >> i % 2 * 16));
    }
  }
}

}  // namespace flashsparse::experts
