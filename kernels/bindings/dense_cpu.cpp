// SPDX-License-Identifier: Apache-2.0
// The ops of dense layers: their schemas, the op that selects one of them on any device, and the
// CPU implementations, which are torch's linear. Kernels of our own would not gain: its library
// reads a dense weight at memory bandwidth for any number of tokens.
#include <algorithm>
#include <array>
#include <optional>

#include "bindings/dense.h"

namespace flashsparse {
namespace {

// Calls an op (x, weight, bias?) -> y on any device.
Tensor call(const char* op, const Tensor& x, const Tensor& weight,
            const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor linear(const char* op, int64_t max_tokens, const Tensor& x, const Tensor& weight,
              const std::optional<Tensor>& bias) {
  check_dense(op, max_tokens, x, weight, bias);
  FS_CHECK(x.is_cpu(), op, ": x and weight must be on the CPU here");
  return call("aten::linear", x, weight, bias);
}

Tensor flat_gemm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear("flat_gemm", kMaxFlatGemmTokens, x, weight, bias);
}

Tensor gemv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear("gemv", kMaxGemvTokens, x, weight, bias);
}

// An op of its own, since graphs of torch.compile must work for any number of tokens.
Tensor dense_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                    int64_t gemv_tokens, int64_t flat_tokens) {
  FS_CHECK(gemv_tokens >= 0 && gemv_tokens <= kMaxGemvTokens,
           "dense_linear: gemv_tokens must be 0 to ", kMaxGemvTokens, ", not ", gemv_tokens);
  FS_CHECK(flat_tokens >= 0 && flat_tokens <= kMaxFlatGemmTokens,
           "dense_linear: flat_tokens must be 0 to ", kMaxFlatGemmTokens, ", not ", flat_tokens);
  // Checked here, since the message of an error in the op called below would be lost.
  FS_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(x.dim() - 1) == weight.size(1),
           "dense_linear: x must be [..., in_features] for a weight [out_features, "
           "in_features]");
  FS_CHECK(x.scalar_type() == weight.scalar_type() && x.device() == weight.device(),
           "dense_linear: x must have the dtype of weight, and be on its device");
  const int64_t cols = weight.size(1), tokens = cols > 0 ? x.numel() / cols : 0;
  if (tokens == 0 || tokens > std::max(gemv_tokens, flat_tokens)) {
    return call("aten::linear", x, weight, bias);
  }
  check_dense("dense_linear", kMaxFlatGemmTokens, x, weight, bias);
  return call(tokens <= gemv_tokens ? "flashsparse::gemv" : "flashsparse::flat_gemm", x, weight,
              bias);
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def("flat_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("gemv(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def(
      "dense_linear(Tensor x, Tensor weight, Tensor? bias, int gemv_tokens, int flat_tokens) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("flat_gemm", TORCH_BOX(&flat_gemm));
  m.impl("gemv", TORCH_BOX(&gemv));
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("dense_linear", TORCH_BOX(&dense_linear));
}

}  // namespace
}  // namespace flashsparse
