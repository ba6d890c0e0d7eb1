// SPDX-License-Identifier: Apache-2.0
// A thread's tile of y: a sum of outer products of x and values, one for each entry (NM-SpMM,
// Listing 2). The operands of the next entry are loaded meanwhile (Listing 4).
//
// For 8x8 (16x8) products of a thread a warp issues 64 (128) FMAs, 4 (6) loads of 16 bytes, one
// instruction that makes an address from an index byte, and one load of index words for four
// entries. Each of these loads takes 4 shared-memory wavefronts: 64 (96) of the 64 (128) clocks in
// which four warps issue their FMAs if a multiprocessor has 128 units, of 128 (256) if it has 64.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/nm_spmm/linear_shape.h"

namespace flashsparse::nm_spmm {

template <class Shape>
struct Operands {
  float4 x[Shape::kTokenQuads], w[Shape::kRowQuads];
};

template <class Shape>
class Tile {
 public:
  // `shared` is where stages begin.
  __device__ __forceinline__ Tile(const Weight& weight, const Arguments& a)
      : entries_(weight.panel_entries) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int kTokenWarps = Shape::kTokens / Shape::kWarpTokens;
    const int row_lane = lane / Shape::kTokenLanes;
    token_ = warp % kTokenWarps * Shape::kWarpTokens + lane % Shape::kTokenLanes * 4;
    row_ = warp / kTokenWarps * Shape::kWarpRows + row_lane * Shape::kThreadRows;
    const int group = row_ >> weight.group_shift;
    x_at_ = token_ * uint32_t{sizeof(float)};
    values_at_ = a.stage.values + row_ / kUnitRows * entries_ * Shape::kRowBytes +
                 row_ % kUnitRows * uint32_t{sizeof(float)};
    index_at_ = a.stage.index + group * entries_;
  }

  // Adds the products of a stage. between(i) is called before each group of four entries.
  template <class Between>
  __device__ __forceinline__ void multiply(uint32_t stage, const Between& between) {
    const uint32_t x = stage + x_at_;
    uint32_t values = stage + values_at_, index = stage + index_at_;
    const int chunks = entries_ / kChunk;
    if constexpr (Shape::kPipelined) {
      uint32_t word = load_shared<uint32_t>(index);
      Operands<Shape> operands[2];
      load(operands[0], x, word, 0, values);
      FS_NO_UNROLL
      for (int chunk = 0; chunk < chunks; ++chunk) {
        between(chunk);
        // After the last entry, the chunk's first one is loaded again, and not used.
        const bool more = chunk + 1 < chunks;
        const uint32_t next = values + (more ? kChunk * Shape::kRowBytes : 0);
        index += more ? kChunk : 0;
        const uint32_t next_word = load_shared<uint32_t>(index);
        FS_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          if (i + 1 < kChunk) {
            load(operands[(i + 1) % 2], x, word, i + 1, values);
          } else {
            load(operands[0], x, next_word, 0, next);
          }
          add_product(operands[i % 2]);
        }
        values = next;
        word = next_word;
      }
    } else {
      FS_NO_UNROLL
      for (int chunk = 0; chunk < chunks; ++chunk) {
        FS_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          Operands<Shape> operands;
          load(operands, x, load_shared<uint32_t>(index), i, values);
          add_product(operands);
        }
        index += kChunk;
        values += kChunk * Shape::kRowBytes;
      }
    }
  }

  // Four sums of one token: token_of(i), rows row_of(quad) to row_of(quad) + 3.
  __device__ __forceinline__ float4 sums(int i, int quad) const {
    const float* const s = &sums_[i][quad * 4];
    return make_float4(s[0], s[1], s[2], s[3]);
  }
  __device__ __forceinline__ int token_of(int i) const {
    return token_ + i / 4 * (Shape::kTokenLanes * 4) + i % 4;
  }
  __device__ __forceinline__ int row_of(int quad) const { return row_ + quad * 4; }

 private:
  // Loads entry i of a chunk: the column of x that byte i of `word` selects, and its values.
  __device__ __forceinline__ void load(Operands<Shape>& to, uint32_t x, uint32_t word, int i,
                                       uint32_t values) const {
    const uint32_t stride = i % 2 ? Shape::kXBytes << 16 : Shape::kXBytes;
    const uint32_t column = i < 2 ? dp2a_lo(stride, word, x) : dp2a_hi(stride, word, x);
    FS_UNROLL
    for (int quad = 0; quad < Shape::kTokenQuads; ++quad) {
      to.x[quad] = load_shared<float4>(column + quad * Shape::kTokenLanes * 16);
    }
    FS_UNROLL
    for (int quad = 0; quad < Shape::kRowQuads; ++quad) {
      to.w[quad] = load_shared<float4>(values + i * Shape::kRowBytes + quad * 16);
    }
  }

  __device__ __forceinline__ void add_product(const Operands<Shape>& operands) {
    FS_UNROLL
    for (int t = 0; t < Shape::kTokenQuads; ++t) {
      const float x[4] = {operands.x[t].x, operands.x[t].y, operands.x[t].z, operands.x[t].w};
      FS_UNROLL
      for (int r = 0; r < Shape::kRowQuads; ++r) {
        const float w[4] = {operands.w[r].x, operands.w[r].y, operands.w[r].z, operands.w[r].w};
        FS_UNROLL
        for (int i = 0; i < 16; ++i) sums_[t * 4 + i / 4][r * 4 + i % 4] += x[i / 4] * w[i % 4];
      }
    }
  }

  float sums_[Shape::kThreadTokens][Shape::kThreadRows] = {};
  const int entries_;
  int token_, row_;                       // first of the thread, in the block's tile
  uint32_t x_at_, values_at_, index_at_;  // offsets in a stage
};

}  // namespace flashsparse::nm_spmm
