// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for a weight whose kept entries are stored side by side for the 16 rows of a
// panel, by activations that are converted to fp32.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/panels.h"

namespace flashsparse::cpu {

// Calls pack(x, tokens, packed) for the activations of each block of tokens, with space for
// `floats` a token and `slack` after all of them, and then multiply(panel, packed, tokens, sums)
// for each panel and block.
template <typename Pack, typename Multiply>
void multiply_entries(const LinearProblem& problem, int block_tokens, int64_t floats, int64_t slack,
                      const Pack& pack, const Multiply& multiply) {
  const int64_t all = panels(problem.out_features);
  for_each_slab(problem, [&](const LinearProblem& slab) {
    const TokenBlocks blocks(slab.tokens, block_tokens);
    AlignedBuffer buffer;
    float* packed = buffer.get<float>(slab.tokens * floats + slack);
    std::fill_n(packed + slab.tokens * floats, slack, 0.0f);
    parallel_chunks(blocks.count, [&](int64_t block) {
      const int64_t token = blocks.begin(block);
      const int64_t offset = token * slab.in_features * bytes_of(slab.dtype);
      pack(static_cast<const char*>(slab.x) + offset, blocks.size(block), packed + token * floats);
    });
    const int64_t chunk = chunk_panels(slab);
    parallel_chunks((all + chunk - 1) / chunk, [&](int64_t index) {
      alignas(64) float sums[LinearKernels::kMostBlockTokens * kPanelRows];
      for (int64_t p = index * chunk; p < std::min(all, (index + 1) * chunk); ++p) {
        for (int64_t block = 0; block < blocks.count; ++block) {
          const int64_t token = blocks.begin(block);
          multiply(p, packed + token * floats, blocks.size(block), sums);
          store_panel(slab, sums, p, token, blocks.size(block));
        }
      }
    });
  });
}

}  // namespace flashsparse::cpu
