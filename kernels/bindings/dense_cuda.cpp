// SPDX-License-Identifier: Apache-2.0
// flat_gemm and gemv on CUDA: checks, allocation, and one launch (for weights whose rows are not
// 16-byte aligned, one for every few tokens).
#include <algorithm>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/dense.h"
#include "bindings/override.h"
#include "cuda/dense/dense.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using dense::FlatPlan;

static_assert(dense::kMaxCutRowBlocks <= cuda::kMaxArrivals);
static_assert(dense::max_flat_tokens(true) == kMaxFlatGemmTokens);
static_assert(dense::max_gemv_tokens(true) == kMaxGemvTokens);

// A product, and the tensors that own the memory of its pointers.
struct Problem {
  Problem(const char* op, int64_t max_tokens, const Tensor& x_, const Tensor& weight_,
          const std::optional<Tensor>& bias_)
      : sizes(check_dense(op, max_tokens, x_, weight_, bias_)), weight(weight_) {
    FS_CHECK(weight.is_cuda(), op, ": x and weight must be on a CUDA device here");
    const torch::stable::accelerator::DeviceGuard guard(weight.get_device_index());
    y = allocate_like(x_, sizes.result);
    call.rows = sizes.rows;
    call.cols = sizes.cols;
    call.tokens = sizes.tokens;
    if (sizes.tokens == 0) return;
    x = aligned_rows(as_contiguous(x_), 8);
    if (bias_) bias = as_contiguous(*bias_);
    call.x = bits(x);
    call.x_stride = x.size(x.dim() - 1);
    call.weight = bits(weight);
    call.weight_stride = sizes.rows == 1 ? sizes.cols : weight.stride(0);
    call.bias = bias ? bits(*bias) : nullptr;
    call.y = static_cast<uint16_t*>(y.mutable_data_ptr());
    call.bfloat16 = weight.scalar_type() == ScalarType::BFloat16;
  }

  // Calls launch(call) for `most` tokens at a time.
  template <class Launch>
  Tensor launched(int64_t most, Launch launch) {
    const torch::stable::accelerator::DeviceGuard guard(weight.get_device_index());
    for (int64_t begin = 0; begin < sizes.tokens; begin += most) {
      cuda::DenseCall slab = call;
      slab.tokens = std::min(most, sizes.tokens - begin);
      slab.x += begin * call.x_stride;
      slab.y += begin * call.rows;
      launch(slab);
    }
    return y;
  }

  DenseSizes sizes;
  Tensor weight, x, y;
  std::optional<Tensor> bias;
  cuda::DenseCall call{};
};

void launch_flat(const Problem& problem, const cuda::DenseCall& call, const FlatPlan& plan) {
  const cudaStream_t stream = current_stream(problem.weight);
  Partials partials(problem.weight, plan.split > 1 ? plan.partial_floats(call.rows) : 0);
  uint32_t* counters = nullptr;
  if (plan.split > 1) {
    STD_CUDA_CHECK(cuda::arrivals(stream, plan.row_blocks(call.rows), &counters));
  }
  STD_CUDA_CHECK(cuda::flat_gemm(call, plan, partials.data(), counters, stream));
}

Tensor flat_gemm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  Problem problem("flat_gemm", kMaxFlatGemmTokens, x, weight, bias);
  const bool aligned = problem.call.aligned();
  const Gpu gpu = gpu_of(weight);
  return problem.launched(dense::max_flat_tokens(aligned), [&](const cuda::DenseCall& call) {
    const auto plan = launch_of(
        "dense.flat_gemm", call.rows, call.cols, call.tokens, FlatPlan{},
        [&] { return dense::plan_flat_gemm(call.rows, call.cols, call.tokens, aligned, gpu); },
        [&](const FlatPlan& own) {
          return broken_rule(own, call.rows, call.cols, call.tokens, aligned, gpu);
        });
    launch_flat(problem, call, plan);
  });
}

Tensor gemv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  Problem problem("gemv", kMaxGemvTokens, x, weight, bias);
  const bool aligned = problem.call.aligned();
  const int multiprocessors = gpu_of(weight).multiprocessors;
  return problem.launched(dense::max_gemv_tokens(aligned), [&](const cuda::DenseCall& call) {
    const auto plan = launch_of(
        "dense.gemv", call.rows, call.cols, call.tokens, GemvPlan{},
        [&] {
          return GemvPlan{dense::plan_gemv(call.rows, call.tokens, aligned, multiprocessors)};
        },
        [&](const GemvPlan& own) { return broken_rule(own, call.tokens, aligned); });
    STD_CUDA_CHECK(cuda::gemv(call, plan.shape, current_stream(weight)));
  });
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("flat_gemm", TORCH_BOX(&flat_gemm));
  m.impl("gemv", TORCH_BOX(&gemv));
}

}  // namespace
}  // namespace flashsparse
