// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap of codes -> a dense matrix of codes on the GPU, a warp a unit, for a library that
// multiplies it by codes of x.
//
// Columns have the order that x's codes have (codes_of_x.cuh), in which a lane holds them: sums of
// products do not ask for it.
#pragma once
#include "cuda/tiled_bitmap/kept_codes.cuh"
#include "cuda/tiled_bitmap/unpack.cuh"

namespace flashsparse::tiled_bitmap {

// A row of codes and 16 bytes more, so that words of 8 rows lie in 32 different banks.
inline constexpr int kCodesRowBytes = kUnitCols + sizeof(uint4);
inline constexpr int kCodesStageBytes = kUnitRows * kCodesRowBytes;

// A lane reads the line of an item, which may be the one behind the last, and the next.
static_assert(kCodesStageBytes == (kLaneWeights / 4 + 2) * kLineBytes, "items in place of rows");

// Writes codes [16 unit_rows(rows), stride], zero where nothing is kept, at the edges, too. They
// are on 16 bytes; `stride` is a multiple of 16, no less than `cols` and no more than a unit more.
// Launch with ceil(units / kUnpackWarps) blocks of kUnpackThreads. What is asked of the tensors is
// what unpack_kernel does.
static __global__ void __launch_bounds__(kUnpackThreads, 8)
    unpack_codes_kernel(const uint32_t* __restrict__ packed, uint32_t num_lines,
                        const int32_t* __restrict__ offsets, int64_t rows, int64_t cols,
                        int64_t stride, unsigned char* __restrict__ codes) {
  FS_SHARED(unsigned char, stages, kUnpackWarps* kCodesStageBytes + kLineBytes);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t unit = blockIdx.x * kUnpackWarps + warp;
  if (unit >= units(rows, cols)) return;
  const uint32_t aligned = (shared_address(stages) + kLineBytes - 1) / kLineBytes * kLineBytes;
  const uint32_t stage = aligned + warp * kCodesStageBytes;
  const UnitHead head = copy_unit<4>(packed, num_lines, offsets, unit, stage);

  uint32_t words[kMaskWords][2][4];  // of 16 columns each, two of row lane / 4 + 8 half
  FS_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    KeptCodes<Float16, true> kept;
    kept.begin(stage, head.start_of(run));
    FS_UNROLL
    for (int w = run * kRunMasks; w < (run + 1) * kRunMasks; ++w) {
      kept.template next<0, false>(head.masks[w], words[w]);
    }
  }
  __syncwarp();  // the rows take the place of the items
  FS_UNROLL
  for (int w = 0; w < kMaskWords; ++w) {
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i % 2 * 8, word = (w * 4 + i / 2) * 4 + lane % 4;
      constexpr uint32_t kZeros = kCodeZero * 0x01010101u;
      store_shared(stage + row * kCodesRowBytes + word * 4, words[w][i / 4][i % 4] ^ kZeros);
    }
  }
  __syncwarp();

  const Corner corner = corner_of(unit, cols);
  constexpr int kRowVectors = kUnitCols / sizeof(uint4), kRowsAtOnce = kLanes / kRowVectors;
  const int first = lane / kRowVectors, col = lane % kRowVectors * sizeof(uint4);
  if (corner.col + col >= stride) return;
  unsigned char* to = codes + (corner.row + first) * stride + corner.col + col;
  FS_UNROLL
  for (int row = first; row < kUnitRows; row += kRowsAtOnce, to += kRowsAtOnce * stride) {
    store_global(reinterpret_cast<uint4*>(to),
                 load_shared<uint4>(stage + row * kCodesRowBytes + col));
  }
}

}  // namespace flashsparse::tiled_bitmap
