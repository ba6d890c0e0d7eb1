// SPDX-License-Identifier: Apache-2.0
// Argument checks of the CUDA ops of nm_gather, and the transposed x of those for many tokens.
#pragma once
#include <algorithm>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/linear_cuda.h"
#include "bindings/nm_gather.h"
#include "cuda/nm_gather/nm_gather.h"

namespace flashsparse {

// The kernels' view of a weight, from its group of rows `group` on.
inline nm_gather::Stored stored(const GatherTensors& weight, const nm_gather::Layout& layout,
                                int64_t pairs, int64_t group = 0) {
  const int64_t unit = group * layout.group_units;
  const auto bytes = [](const Tensor& tensor) {
    return static_cast<const uint8_t*>(tensor.const_data_ptr());
  };
  return {bytes(weight.values) + unit * pairs * layout.pair_bytes(),
          bytes(weight.index) + group * pairs * nm_gather::kPair,
          weight.row_scales ? weight.row_scales->const_data_ptr<float>() + unit * layout.unit_rows
                            : nullptr};
}

inline void check_readable(const GatherTensors& weight, int64_t out, int64_t in,
                           const nm_gather::Layout& layout) {
  check_on_cuda(weight.values, "gather_values");
  check_nm_gather(weight, out, in, layout);
  FS_CHECK(
      reinterpret_cast<uintptr_t>(weight.values.const_data_ptr()) % 16 == 0 &&
          reinterpret_cast<uintptr_t>(weight.index.const_data_ptr()) % 16 == 0,
      "gather_values must start on 16 bytes and gather_index on 16: pass tensors of their own ",
      "and not slices, e.g. gather_values.clone()");
}

// Calls body(x_tiles, begin, tokens) for each slab of tokens, transposed (transpose_x.cuh), on the
// current stream. A slab is as many tokens as a bounded workspace holds, in whole blocks of any
// kernel.
template <class Body>
void for_each_x_tiles(const LinearInputs& inputs, const nm_gather::Layout& layout,
                      const Body& body) {
  constexpr int64_t kWorkspaceBytes = 256 << 20, kBlockTiles = 512 / nm_gather::kTileTokens;
  const int64_t cols = inputs.in_features, columns = nm_gather::x_tile_columns(layout, cols);
  const int64_t block_bytes = kBlockTiles * columns * nm_gather::kTileTokens * sizeof(uint16_t);
  const int64_t most =
      std::max<int64_t>(kWorkspaceBytes / block_bytes, 1) * kBlockTiles * nm_gather::kTileTokens;
  const Tensor x = aligned_rows(inputs.x, linear::kTileCols);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    Tensor x_tiles =
        allocate_like(x, {nm_gather::x_tile_count(tokens), columns, nm_gather::kTileTokens});
    STD_CUDA_CHECK(cuda::nm_gather_transpose_x(
        bits(x) + begin * row_length(x), static_cast<int>(row_length(x)), static_cast<int>(tokens),
        columns, mutable_bits(x_tiles), current_stream(x)));
    body(x_tiles, begin, tokens);
  }
}

// The arguments of a prefill kernel for a slab of tokens.
inline cuda::NmGatherTiles product_of(const LinearInputs& inputs, const nm_gather::Stored& weight,
                                      const Tensor& x_tiles, int64_t begin, int64_t tokens,
                                      Tensor& y) {
  cuda::NmGatherTiles product{};
  product.weight = weight;
  product.x_tiles = bits(x_tiles);
  product.x_scales = inputs.x_scales ? inputs.x_scales + begin : nullptr;
  product.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
  product.y = mutable_bits(y) + begin * inputs.out_features;
  product.rows = inputs.out_features;
  product.cols = inputs.in_features;
  product.tokens = tokens;
  return product;
}

}  // namespace flashsparse
