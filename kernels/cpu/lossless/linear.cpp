// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "common/aligned_buffer.h"
#include "common/float16.h"
#include "common/parallel.h"
#include "cpu/lossless/kernels.h"
#include "cpu/lossless/lossless.h"
#include "cpu/panels.h"
#include "cpu/scalar.h"

namespace flashsparse::lossless {
namespace {

constexpr int kTaskRows = 32;  // stay in L2 from one block of tokens to the next
constexpr int kMostBlockTokens = 8;

// A row with its exceptions by a token, one element after the other.
float exact_product(const Packed& packed, int64_t row, const cpu::LinearProblem& problem,
                    int64_t token) {
  static thread_local AlignedBuffer buffer;
  uint16_t* bits = buffer.get<uint16_t>(packed.cols);
  read_row(packed, row, bits);
  float sum = 0;
  for (int64_t col = 0; col < packed.cols; ++col) {
    sum += float_from_bfloat16(bits[col]) *
           cpu::load(problem.x, token * packed.cols + col, problem.dtype);
  }
  return sum;
}

// Adds a row's exceptions to the sum of its other elements. Where that is not finite, x is not, or
// it overflowed: then 0 in the place of an exception may have made NaN of an infinity.
float with_exceptions(float sum, const Packed& packed, int64_t row,
                      const cpu::LinearProblem& problem, int64_t token) {
  const int32_t begin = packed.offsets[row], end = packed.offsets[row + 1];
  if (begin == end) return sum;
  if (!std::isfinite(sum)) return exact_product(packed, row, problem, token);
  for (int32_t i = begin; i < end; ++i) {
    const int64_t col = packed.columns[i];
    if (static_cast<uint64_t>(col) >= static_cast<uint64_t>(packed.cols)) continue;
    sum += float_from_bfloat16(packed.exceptions[i]) *
           cpu::load(problem.x, token * packed.cols + col, problem.dtype);
  }
  return sum;
}

// Some rows, kTaskRows at most, by all tokens of a problem.
void multiply_rows(const LinearKernels& inner, const Packed& packed,
                   const cpu::LinearProblem& problem, const char* activations, int64_t stride,
                   int64_t first, int64_t end) {
  const cpu::TokenBlocks blocks(problem.tokens, inner.block_tokens);
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t token = blocks.begin(block);
    for (int64_t row = first; row < end; row += kRows) {
      const uint8_t* rows[kRows];
      uint8_t bases[kRows];
      for (int i = 0; i < kRows; ++i) {
        const int64_t own = std::min(row + i, end - 1);
        rows[i] = packed.bytes + own * row_bytes(packed.cols);
        bases[i] = packed.bases[own];
      }
      float sums[kMostBlockTokens * kRows];
      inner.multiply(rows, bases, chunks(packed.cols), activations + token * stride, stride,
                     blocks.size(block), sums);
      for (int64_t own = row; own < std::min(row + kRows, end); ++own) {
        const float bias = problem.bias ? cpu::load(problem.bias, own, problem.dtype) : 0.0f;
        for (int t = 0; t < blocks.size(block); ++t) {
          const float sum =
              with_exceptions(sums[t * kRows + own - row], packed, own, problem, token + t);
          cpu::store(problem.y, (token + t) * packed.rows + own, sum + bias, problem.dtype);
        }
      }
    }
  }
}

}  // namespace

void linear(const Packed& packed, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype) {
  const Kernels& own = kernels();  // selected before any thread starts
  const LinearKernels& inner =
      dtype == Dtype::kBFloat16 && own.bfloat16_dot ? *own.bfloat16_dot : *own.float32;
  const cpu::LinearProblem problem{packed.rows, packed.cols, Dtype::kBFloat16, x, tokens, bias,
                                   y,           dtype};
  const int64_t stride = chunks(packed.cols) * kChunkColumns * inner.activation_bytes;
  const int64_t shared = packed.rows / (8 * num_threads());  // several tasks for each thread
  const int64_t task = std::clamp<int64_t>(shared / kRows * kRows, kRows, kTaskRows);
  cpu::for_each_slab(problem, [&](const cpu::LinearProblem& slab) {
    AlignedBuffer buffer;
    char* activations = buffer.get<char>(slab.tokens * stride);
    parallel_chunks(slab.tokens, [&](int64_t token) {
      const int64_t offset = token * packed.cols * cpu::bytes_of(dtype);
      inner.pack_activations(static_cast<const char*>(slab.x) + offset, dtype, packed.cols,
                             activations + token * stride);
    });
    parallel_chunks((packed.rows + task - 1) / task, [&](int64_t index) {
      multiply_rows(inner, packed, slab, activations, stride, index * task,
                    std::min(packed.rows, (index + 1) * task));
    });
  });
}

}  // namespace flashsparse::lossless
