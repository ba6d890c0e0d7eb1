// SPDX-License-Identifier: Apache-2.0
// 8-bit values in the 16-bit elements that packers and readers handle: a mark above the 8 bits
// makes everything but value 0 a nonzero.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/aligned_buffer.h"
#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace flashsparse::cpu {

// Of nonzero values. The lower byte is value + 128.
inline uint16_t marked(int8_t code) {
  return static_cast<uint16_t>(kMark | (static_cast<uint8_t>(code) ^ 128));
}
inline int8_t code_of(uint16_t value) {
  return value ? static_cast<int8_t>(static_cast<uint8_t>(value) ^ 128) : int8_t{0};
}

// Marks nonzero values, and removes the marks.
inline void mark(const int8_t* codes, int64_t count, uint16_t* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = marked(codes[i]);
}
inline void unmark(const uint16_t* values, int64_t count, int8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<uint8_t>(values[i]) ^ 128);
  }
}

// Blocks of `high` rows and `wide` columns of an int8 weight, with marked values.
inline Blocks blocks_of(const int8_t* codes, int64_t rows, int64_t cols, int64_t high,
                        int64_t wide) {
  return [=](const std::function<void(const Block&)>& consume) {
    const int64_t across = (cols + wide - 1) / wide, down = (rows + high - 1) / high;
    parallel_chunks(down * across, [&](int64_t index) {
      static thread_local AlignedBuffer buffer;
      uint16_t* values = buffer.get<uint16_t>(high * wide);
      const int64_t row = index / across * high, col = index % across * wide;
      const Block block{row,    col, std::min(high, rows - row), std::min(wide, cols - col),
                        values, wide};
      for (int64_t r = 0; r < block.rows; ++r) {
        const int8_t* from = codes + (row + r) * cols + col;
        for (int64_t c = 0; c < block.cols; ++c) {
          values[r * wide + c] = from[c] ? marked(from[c]) : uint16_t{0};
        }
      }
      consume(block);
    });
  };
}

// Destination of blocks of marked values: int8 codes[rows, cols], or the dequantized weight[rows,
// cols].
class CodeSink {
 public:
  CodeSink(int8_t* codes, int64_t cols) : codes_(codes), cols_(cols) {}
  CodeSink(void* weight, Dtype dtype, const float* scales, int64_t cols)
      : weight_(weight), dtype_(dtype), scales_(scales), cols_(cols) {}

  void operator()(const Block& block) const {
    for (int64_t r = 0; r < block.rows; ++r) {
      const uint16_t* from = block.values + r * block.stride;
      const int64_t first = (block.row + r) * cols_ + block.col;
      if (codes_) {
        for (int64_t c = 0; c < block.cols; ++c) codes_[first + c] = code_of(from[c]);
      } else {
        const float scale = scales_[block.row + r];
        for (int64_t c = 0; c < block.cols; ++c) {
          store(weight_, first + c, from[c] ? code_of(from[c]) * scale : 0.0f, dtype_);
        }
      }
    }
  }

 private:
  int8_t* codes_ = nullptr;
  void* weight_ = nullptr;
  Dtype dtype_ = Dtype::kFloat32;
  const float* scales_ = nullptr;  // of rows
  int64_t cols_;
};

}  // namespace flashsparse::cpu
