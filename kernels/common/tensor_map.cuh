// SPDX-License-Identifier: Apache-2.0
// TMA: copies of whole tiles from global to shared memory (sm_90). One thread starts a copy, whose
// bytes are counted by mbarriers as they land.
#pragma once
#include "common/cluster.cuh"
#include "common/device.cuh"
#include "common/mbarrier.cuh"
#include "common/tensor_map.h"

#ifndef __CUDACC__
#include <cstring>
#endif

namespace flashsparse {

inline constexpr int kTileCols = 64;       // 128 bytes, a row of a tile
inline constexpr uint16_t kThisBlock = 0;  // for copy_tile, instead of a mask of blocks

#ifdef __CUDACC__

// Has the map brought to where copies look for it, well before the first.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
}

// Starts to copy the tile whose first element is (row, col) of the matrix to a shared address, a
// multiple of 1024; the layout is that of a wgmma operand (wgmma.cuh), with zeros outside of the
// matrix. The copy goes to this address in each block of the cluster that is set in `blocks`, or to
// this block only (kThisBlock); the barrier of each block counts the bytes of the whole tile. `map`
// is a __grid_constant__ parameter of the kernel.
__device__ __forceinline__ void copy_tile(uint32_t shared, const TensorMap& map, int row, int col,
                                          uint32_t barrier, uint16_t blocks) {
  if (blocks == kThisBlock) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
        "l"(&map), "r"(col), "r"(row), "r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
  }
}

#else

namespace detail {
static_assert(sizeof(TiledMatrix) <= sizeof(TensorMap), "the emulator's map is one");
}

// The emulator's map of a matrix.
inline TensorMap emulated_map(const TiledMatrix& matrix) {
  TensorMap map{};
  std::memcpy(map.words, &matrix, sizeof matrix);
  return map;
}

inline void prefetch_tensor_map(const TensorMap&) {}

// The copy lands when a thread waits for it, at the last moment that a GPU allows.
inline void copy_tile(uint32_t shared, const TensorMap& map, int row, int col, uint32_t barrier,
                      uint16_t blocks, simt::Place place = simt::Place::here()) {
  TiledMatrix matrix;
  std::memcpy(&matrix, map.words, sizeof matrix);
  constexpr uint32_t kRowBytes = kTileCols * sizeof(uint16_t), kPiece = 2 * sizeof(uint16_t);
  if (shared % 1024 != 0)
    simt::fail("copy_tile to shared address %#x, which is not on 1024 bytes (%s:%d)", shared,
               place.file_name(), place.line);
  for (unsigned rank = 0; rank == 0 || blocks >> rank; ++rank) {
    if (blocks != kThisBlock && !(blocks >> rank & 1)) continue;
    simt::Block* block;
    simt::Mbarrier* at;
    {
      const simt::sanitizers::Unwatched unwatched;
      block = blocks == kThisBlock ? simt::current->block : simt::current->block->cluster.at(rank);
      at = &detail::mbarrier_at(*block, barrier, "copy_tile", place);
      if (!block->shared.at(shared, matrix.tile_rows * kRowBytes))
        simt::fail("copy_tile to shared address %#x, out of bounds (%s:%d)", shared,
                   place.file_name(), place.line);
    }
    for (int r = 0; r < matrix.tile_rows; ++r) {
      for (uint32_t byte = 0; byte < kRowBytes; byte += kPiece) {
        const int64_t own_row = row + r, own_col = col + byte / sizeof(uint16_t);
        const bool inside = own_row < matrix.rows && own_col < matrix.cols;
        const uint16_t* const from = matrix.data + own_row * matrix.stride + own_col;
        const uint32_t to = shared + r * kRowBytes + (byte ^ (shared / kRowBytes + r) % 8 << 4);
        // An odd number of columns leaves padding after the last one, which a GPU sets to zero,
        // too.
        at->copies.start(block->shared.at(to, kPiece),
                         inside ? reinterpret_cast<const unsigned char*>(from) : nullptr, kPiece,
                         place);
      }
    }
    const simt::sanitizers::Unwatched unwatched;
    at->bytes -= matrix.tile_rows * kRowBytes;
    simt::sanitizers::release(at->order(at->phases));
    simt::mbarrier_end_phase(*at);
  }
}

#endif

}  // namespace flashsparse
