// SPDX-License-Identifier: Apache-2.0
// Divides a sequence of tiles into equal ranges, one for each block.
#pragma once
#include "common/device.cuh"

namespace flashsparse::linear {

// First tile of a block's range, and the block of a tile. 32 bits suffice, as tiles * (blocks + 1)
// < 2^32.
__device__ __forceinline__ int first_tile(uint32_t tiles, uint32_t block, uint32_t blocks) {
  return tiles * block / blocks;
}
__device__ __forceinline__ int block_of_tile(uint32_t tiles, uint32_t tile, uint32_t blocks) {
  return ((tile + 1) * blocks - 1) / tiles;
}

}  // namespace flashsparse::linear
