// SPDX-License-Identifier: Apache-2.0
// Shared by the linear ops of packed layers, in any format and on every device.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bindings/packed.h"
#include "bindings/torch_stable.h"
#include "common/huge_pages.h"

namespace flashsparse {

// Elements of a token of x [..., features].
inline int64_t row_length(const Tensor& x) { return x.size(x.dim() - 1); }

// x and bias as kernels need them, and the shape of the result.
struct LinearInputs {
  Tensor x;                         // [..., in_features], contiguous
  std::optional<Tensor> bias;       // [out_features], contiguous, in the dtype of x
  const float* x_scales = nullptr;  // [tokens], or null: see take_x_scales
  int64_t tokens, in_features, out_features;
  std::vector<int64_t> y_shape;  // [..., out_features]

  // `first` is the weight's first tensor, `first_name` its name.
  LinearInputs(const Tensor& x_, int64_t out_features, const std::optional<Tensor>& bias_,
               const Tensor& first, const char* first_name)
      : x(checked(x_, first, first_name)),
        tokens(1),
        in_features(row_length(x)),
        out_features(out_features) {
    check_shape(out_features, 1);
    y_shape.reserve(x.dim());
    for (int64_t i = 0; i + 1 < x.dim(); ++i) {
      y_shape.push_back(x.size(i));
      tokens *= x.size(i);
    }
    y_shape.push_back(out_features);
    if (!bias_) return;
    FS_CHECK(bias_->dim() == 1 && bias_->size(0) == out_features, "bias must be [", out_features,
             "]");
    check_beside(*bias_, "bias", first, first_name);
    bias = as_contiguous(in_dtype(*bias_, x.scalar_type()));
  }

  // Takes scales of tokens, by which sums are multiplied before bias is added: of quantized
  // activations, whose codes are x. 16 bits of the weight's dtype hold any code.
  void take_x_scales(const std::optional<Tensor>& scales, ScalarType weight_dtype,
                     const std::string& values) {
    if (!scales) return;
    FS_CHECK(values != "native", "x_scales are of quantized activations: native values have none");
    FS_CHECK(is_16_bit(weight_dtype) && x.scalar_type() == weight_dtype && !x.is_cpu(),
             "x_scales are for x in the 16-bit dtype of the weight, on a GPU. Remedy: multiply y");
    check_tensor(*scales, "x_scales", ScalarType::Float, 1);
    check_beside(*scales, "x_scales", x, "x");
    FS_CHECK(scales->size(0) == tokens, "x_scales must be [", tokens,
             "], one for each token, not [", scales->size(0), "]");
    x_scales = scales->const_data_ptr<float>();
  }

  const void* bias_data() const { return bias ? bias->const_data_ptr() : nullptr; }

  // Allocates y of y_shape, in the dtype of x.
  Tensor new_y() const {
    Tensor y = allocate_like(x, y_shape);
    if (y.is_cpu()) prefer_huge_pages(y.mutable_data_ptr(), y.numel() * y.element_size());
    return y;
  }
  // x or y as a matrix, for the library: a view takes as long as an allocation.
  Tensor by_token(const Tensor& tensor, int64_t features) const {
    return torch::stable::view(tensor, {tokens, features});
  }

 private:
  static Tensor checked(const Tensor& x, const Tensor& first, const char* first_name) {
    FS_CHECK(x.dim() >= 1, "x must be [..., in_features]");
    FS_CHECK(is_16_bit(x.scalar_type()) || x.scalar_type() == ScalarType::Float,
             "x must be float32, float16 or bfloat16");
    check_beside(x, "x", first, first_name);
    return as_contiguous(x);
  }
};

// sparse_tokens: up to how many tokens the format's own kernel multiplies.
inline void check_sparse_tokens(std::optional<int64_t> sparse_tokens) {
  FS_CHECK(sparse_tokens.value_or(0) >= 0,
           "sparse_tokens must be 0 (unpack for any number of tokens) or more, not ",
           sparse_tokens.value_or(0));
}

// few_tokens, for formats with a decode and a prefill kernel: up to how many tokens the former
// multiplies.
inline void check_sparse_tokens(std::optional<int64_t> sparse_tokens,
                                std::optional<int64_t> few_tokens) {
  check_sparse_tokens(sparse_tokens);
  FS_CHECK(few_tokens.value_or(0) >= 0,
           "few_tokens must be 0 (the kernel for many, for any number of tokens) or more, not ",
           few_tokens.value_or(0));
}

}  // namespace flashsparse
