// SPDX-License-Identifier: Apache-2.0
// What the wgmma kernels of every format that has units are told of a product.
#pragma once
#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "cuda/mma_units/wgmma_arguments.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {

// Sets all but the weight and scales of x. `partials` are plan.partial_floats() of them.
template <class Plan>
void set_product(mma_units::WgmmaArguments& arguments, const LinearInputs& inputs, const Plan& plan,
                 Partials& partials, Tensor& y, cudaStream_t stream) {
  const int64_t rows = inputs.out_features, tokens = inputs.tokens;
  arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
  arguments.y = mutable_bits(y);
  arguments.partials = partials.data();
  arguments.rows = static_cast<int>(rows);
  arguments.cols = static_cast<int>(inputs.in_features);
  arguments.tokens = static_cast<int>(tokens);
  arguments.cut(plan);
  if (plan.shares_tiles(rows, tokens)) {
    STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows, tokens), &arguments.arrivals));
  }
}

}  // namespace flashsparse
