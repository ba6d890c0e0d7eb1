// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias by the stream-K kernel of any packed format: its arguments and launches.
#pragma once
#include <algorithm>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "cuda/shared/arrivals.h"
#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/stream_k_plan.h"

namespace flashsparse {

static_assert(linear::kMaxTileRows <= cuda::kMaxArrivals);

// Fills y, with one launch for each `most_tokens` tokens on the current stream. plan_for(tokens)
// returns the format's plan of a launch, and launch(arguments, plan, stream) performs it.
template <class PlanFor, class Launch>
void stream_k_product(const LinearInputs& inputs, Tensor& y, int64_t most_tokens,
                      const PlanFor& plan_for, const Launch& launch) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, linear::kTileCols);
  const int64_t stride = row_length(x);
  const cudaStream_t stream = current_stream(x);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most_tokens) {
    const int64_t tokens = std::min(most_tokens, inputs.tokens - begin);
    const auto plan = plan_for(tokens);
    Partials partials(x, plan.partial_floats());
    linear::Arguments arguments;
    arguments.x_stride = static_cast<int>(stride);
    arguments.x = bits(x) + begin * stride;
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.data();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    arguments.tile_rows = static_cast<int>(linear::tile_rows(rows));
    arguments.tile_cols = static_cast<int>(linear::tile_cols(cols));
    STD_CUDA_CHECK(cuda::arrivals(stream, arguments.tile_rows, &arguments.arrivals));
    STD_CUDA_CHECK(launch(arguments, plan, stream));
  }
}

}  // namespace flashsparse
