// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_panels/nm_panels.h"

#include <algorithm>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/nm_panels/kernels.h"
#include "cpu/scalar.h"

namespace flashsparse::nm_panels {
namespace {

// The activations of a slab, block after block, each fp32 [in_features + 1][tokens]: the last row
// is the zero that entries beyond the weight's edge multiply.
const float* pack(const Kernels& own, const cpu::LinearProblem& slab,
                  const cpu::TokenBlocks& blocks, AlignedBuffer& buffer) {
  const int64_t cols = slab.in_features, rows = cols + 1;
  float* packed = buffer.get<float>(slab.tokens * rows);
  parallel_chunks(blocks.count, [&](int64_t block) {
    const int64_t token = blocks.begin(block);
    const int tokens = blocks.size(block);
    const char* x = static_cast<const char*>(slab.x) + token * cols * cpu::bytes_of(slab.dtype);
    float* own_part = packed + token * rows;
    own.pack_activations(x, slab.dtype, cols, tokens, own_part);
    std::fill_n(own_part + cols * tokens, tokens, 0.0f);
  });
  return packed;
}

}  // namespace

void linear(const Weight& weight, const cpu::LinearProblem& problem) {
  const Kernels& own = kernels();
  const int64_t all = panels(problem.out_features);
  const int64_t panel_bytes = weight.kept * kPanelRows * cpu::bytes_of(problem.weight_dtype);
  cpu::for_each_slab(problem, [&](const cpu::LinearProblem& slab) {
    const cpu::TokenBlocks blocks(slab.tokens, own.block_tokens);
    AlignedBuffer buffer;
    const float* x = pack(own, slab, blocks, buffer);
    const int64_t chunk = cpu::chunk_panels(slab);
    parallel_chunks((all + chunk - 1) / chunk, [&](int64_t index) {
      alignas(64) float sums[cpu::LinearKernels::kMostBlockTokens * kPanelRows];
      for (int64_t p = index * chunk; p < std::min(all, (index + 1) * chunk); ++p) {
        const void* values = static_cast<const char*>(weight.values) + p * panel_bytes;
        const int32_t* columns = weight.columns + p / weight.group_panels * weight.kept;
        for (int64_t block = 0; block < blocks.count; ++block) {
          const int64_t token = blocks.begin(block);
          own.multiply(values, slab.weight_dtype, columns, weight.kept,
                       x + token * (slab.in_features + 1), blocks.size(block), sums);
          cpu::store_panel(slab, sums, p, token, blocks.size(block));
        }
      }
    });
  });
}

namespace {

template <typename Value>
void unpack_values(const Weight& packed, int64_t rows, int64_t cols, Value* weight) {
  parallel_chunks(panels(rows), [&](int64_t panel) {
    const int64_t first = panel * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, rows - first);
    const Value* values = static_cast<const Value*>(packed.values) + first * packed.kept;
    const int32_t* columns = packed.columns + panel / packed.group_panels * packed.kept;
    std::fill_n(weight + first * cols, count * cols, Value{0});
    for (int64_t j = 0; j < packed.kept; ++j) {
      if (columns[j] < 0 || columns[j] >= cols) continue;
      for (int64_t r = 0; r < count; ++r) {
        weight[(first + r) * cols + columns[j]] = values[j * kPanelRows + r];
      }
    }
  });
}

}  // namespace

void unpack(const Weight& packed, int64_t rows, int64_t cols, int64_t bytes, void* weight) {
  if (bytes == 2) return unpack_values(packed, rows, cols, static_cast<uint16_t*>(weight));
  unpack_values(packed, rows, cols, static_cast<uint32_t*>(weight));
}

}  // namespace flashsparse::nm_panels
