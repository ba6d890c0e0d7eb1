// SPDX-License-Identifier: Apache-2.0
// The ops of dense layers on the CPU: torch's own linear. It has nothing to gain from kernels of
// ours: its library reads a dense weight at the bandwidth of the memory for any number of tokens.
#include <array>
#include <optional>

#include "bindings/dense_checks.h"

namespace flashsparse {
namespace {

Tensor linear(const char* op, int64_t max_tokens, const Tensor& x, const Tensor& weight,
              const std::optional<Tensor>& bias) {
  check_dense(op, max_tokens, x, weight, bias);
  STD_TORCH_CHECK(x.is_cpu(), op, ": x and weight must be on the CPU here");
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor flat_gemm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear("flat_gemm", kMaxFlatGemmTokens, x, weight, bias);
}

Tensor gemv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear("gemv", kMaxGemvTokens, x, weight, bias);
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("flat_gemm", TORCH_BOX(&flat_gemm));
  m.impl("gemv", TORCH_BOX(&gemv));
}

}  // namespace
}  // namespace flashsparse
