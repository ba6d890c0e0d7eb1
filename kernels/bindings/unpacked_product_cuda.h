// SPDX-License-Identifier: Apache-2.0
// unpacked_product on CUDA, where x may be codes of quantized activations with scales of tokens:
// the library's product stays in float32 until it is scaled, so that y is rounded once.
#pragma once
#include <algorithm>
#include <array>

#include "bindings/cuda.h"
#include "bindings/unpacked_product.h"
#include "cuda/mma_units/scale_sums_launch.h"

namespace flashsparse {

namespace detail {

// sums = x weight^T in float32, of 16-bit x and weight.
inline void library_float_sums(const Tensor& x, const Tensor& weight, Tensor& sums) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(x), from(torch::stable::transpose(weight, 0, 1)),
                                    from(ScalarType::Float), from(sums)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::mm", "dtype_out", stack.data(), TORCH_ABI_VERSION));
  (void)torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace detail

// As unpacked_product.
template <class UnpackRows>
void unpacked_product_cuda(const LinearInputs& inputs, ScalarType weight_dtype, int64_t row_step,
                           Tensor& y, const UnpackRows& unpack_rows) {
  if (!inputs.x_scales) return unpacked_product(inputs, weight_dtype, row_step, y, unpack_rows);
  constexpr int64_t kAligned = mma_units::kScaledRows;  // rows that a thread scales
  const Tensor x = inputs.by_token(inputs.x, inputs.in_features);
  const int64_t row_bytes = inputs.in_features * 2 + inputs.tokens * 4;
  by_panels(inputs.out_features, std::max(row_step, kAligned), row_bytes,
            [&](int64_t first, int64_t rows) {
              const int64_t stride = (rows + kAligned - 1) / kAligned * kAligned;
              const Tensor sums = allocate_like(x, {inputs.tokens, stride}, ScalarType::Float);
              Tensor product = torch::stable::narrow(const_cast<Tensor&>(sums), 1, 0, rows);
              detail::library_float_sums(x, unpack_rows(first, rows), product);
              mma_units::SumsToScale panel{};
              panel.sums = words_of(sums);
              panel.are_floats = true;
              panel.sums_stride = stride;
              panel.x_scales = inputs.x_scales;
              panel.bias = inputs.bias ? bits(*inputs.bias) + first : nullptr;
              panel.y = mutable_bits(y) + first;
              panel.y_stride = inputs.out_features;
              panel.rows = static_cast<int>(rows);
              panel.tokens = inputs.tokens;
              STD_CUDA_CHECK(cuda::scale_sums(panel, x.scalar_type() == ScalarType::BFloat16,
                                              current_stream(x)));
            });
}

}  // namespace flashsparse
