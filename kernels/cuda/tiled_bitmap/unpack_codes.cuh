// SPDX-License-Identifier: Apache-2.0
// Unpacks int8 values of tiled_bitmap to a dense matrix on the GPU, one warp per unit, for a
// library GEMM with quantized x.
//
// Columns are in the order of quantized x (codes_of_x.cuh), in which a lane holds them, too: a dot
// product does not depend on the order.
#pragma once
#include "cuda/tiled_bitmap/kept_codes.cuh"
#include "cuda/tiled_bitmap/unpack.cuh"

namespace flashsparse::tiled_bitmap {

// Rows are padded by 16 bytes, so that words of 8 rows lie in 32 different banks.
inline constexpr int kCodesRowBytes = kUnitCols + sizeof(uint4);
inline constexpr int kCodesStageBytes = kUnitRows * kCodesRowBytes;

// A lane reads the line of its next item, which may be past the last line, and the one below.
static_assert(kCodesStageBytes == (kLaneWeights / 4 + 2) * kLineBytes, "items in place of rows");

// Writes codes [16 unit_rows(rows), stride], zero-padded, 16-byte aligned. `stride` is a multiple
// of 16, at least `cols` and at most a unit more. Launch with ceil(units / kUnpackWarps) blocks of
// kUnpackThreads. The tensors have to meet the requirements of unpack_kernel.
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

  // words[panel][i / 4][i % 4]: row lane / 4 + 8 (i % 2), the 16 columns from 16 (i / 2) on.
  uint32_t words[kMaskWords][2][4];
  FS_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    KeptCodes<Float16, true> kept;
    kept.begin(stage, head.start_of(run));
    FS_UNROLL
    for (int w = run * kRunMasks; w < (run + 1) * kRunMasks; ++w) {
      kept.template next<0, false>(head.masks[w], words[w]);
    }
  }
  __syncwarp();  // rows overwrite items
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
