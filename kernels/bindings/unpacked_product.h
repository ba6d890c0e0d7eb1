// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias by unpacking W and torch's dense product, for any packed format. Pays for many
// tokens, where the product is bound by arithmetic and the weight's bytes do not matter.
#pragma once
#include <algorithm>
#include <array>
#include <optional>

#include "bindings/linear.h"

namespace flashsparse {

namespace detail {

// y = x weight^T + bias by torch's own library, whatever the strides of y.
inline void library_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                           Tensor& y) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(x), from(weight), from(bias), from(y)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  (void)torch::stable::detail::to<Tensor>(stack[0]);
}

// Products of int8 x [tokens, columns] by int8 weight [rows, columns]: int32 [tokens, rows]. More
// than 16 tokens, multiples of 8 rows and columns.
inline Tensor library_int8_sums(const Tensor& x, const Tensor& weight) {
  using torch::stable::detail::from;
  std::array<StableIValue, 2> stack{from(x), from(torch::stable::transpose(weight, 0, 1))};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::_int_mm", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace detail

// Calls take(first_row, rows) for panels of a weight's rows of about equal size, each beginning at
// a multiple of row_step, so that any layer needs only a bounded workspace of row_bytes for each
// row.
template <class Take>
void by_panels(int64_t rows, int64_t row_step, int64_t row_bytes, const Take& take) {
  constexpr int64_t kWorkspaceBytes = 256 << 20;
  const int64_t steps = (rows + row_step - 1) / row_step;
  const int64_t most = std::clamp<int64_t>(kWorkspaceBytes / (row_bytes * row_step), 1, steps);
  const int64_t panels = (steps + most - 1) / most;
  const int64_t panel_rows = (steps + panels - 1) / panels * row_step;
  for (int64_t first = 0; first < rows; first += panel_rows) {
    take(first, std::min(panel_rows, rows - first));
  }
}

// Fills y. unpack_rows(first_row, rows) returns those rows of W, dense, in weight_dtype; first_row
// is a multiple of row_step. If x and the weight differ in dtype, both are converted to float32,
// and the result is rounded once, so that neither loses a bit.
template <class UnpackRows>
void unpacked_product(const LinearInputs& inputs, ScalarType weight_dtype, int64_t row_step,
                      Tensor& y, const UnpackRows& unpack_rows) {
  const ScalarType dtype = inputs.x.scalar_type();
  const ScalarType compute = dtype == weight_dtype ? dtype : ScalarType::Float;
  const int64_t stored = is_16_bit(weight_dtype) ? sizeof(uint16_t) : sizeof(float);
  const int64_t value_bytes = stored + (weight_dtype == compute ? 0 : sizeof(float));
  const Tensor x = in_dtype(inputs.by_token(inputs.x, inputs.in_features), compute);
  std::optional<Tensor> bias;
  if (inputs.bias) bias = in_dtype(*inputs.bias, compute);

  Tensor result = inputs.by_token(y, inputs.out_features);
  Tensor sums = dtype == compute ? result : allocate_like(x, {inputs.tokens, inputs.out_features});
  const auto multiply = [&](int64_t first, int64_t rows) {
    const Tensor weight = unpack_rows(first, rows);
    std::optional<Tensor> panel_bias;
    if (bias) panel_bias = torch::stable::narrow(*bias, 0, first, rows);
    Tensor panel_sums = torch::stable::narrow(sums, 1, first, rows);
    detail::library_linear(x, in_dtype(weight, compute), panel_bias, panel_sums);
  };
  by_panels(inputs.out_features, row_step, inputs.in_features * value_bytes, multiply);
  if (dtype != compute) torch::stable::copy_(result, sums);
}

}  // namespace flashsparse
