// SPDX-License-Identifier: Apache-2.0
// Equal ranges of a line of tiles, one a block: which tiles are whose.
#pragma once
#include "common/device.cuh"

namespace flashsparse::linear {

// The first tile of a block's range. tiles * (blocks + 1) < 2^32, so that 32 bits do.
__device__ __forceinline__ int first_tile(uint32_t tiles, uint32_t block, uint32_t blocks) {
  return tiles * block / blocks;
}
__device__ __forceinline__ int block_of_tile(uint32_t tiles, uint32_t tile, uint32_t blocks) {
  return ((tile + 1) * blocks - 1) / tiles;
}

}  // namespace flashsparse::linear
