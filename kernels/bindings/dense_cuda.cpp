// SPDX-License-Identifier: Apache-2.0
// flat_gemm and gemv on CUDA: checks, allocation, and one launch (for weights whose rows are not
// 16-byte aligned, one for every few tokens).
#include <algorithm>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/dense.h"
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
    launch_flat(problem, call,
                dense::plan_flat_gemm(call.rows, call.cols, call.tokens, aligned, gpu));
  });
}

Tensor gemv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  Problem problem("gemv", kMaxGemvTokens, x, weight, bias);
  const bool aligned = problem.call.aligned();
  const int multiprocessors = gpu_of(weight).multiprocessors;
  return problem.launched(dense::max_gemv_tokens(aligned), [&](const cuda::DenseCall& call) {
    STD_CUDA_CHECK(cuda::gemv(call,
                              dense::plan_gemv(call.rows, call.tokens, aligned, multiprocessors),
                              current_stream(weight)));
  });
}

// For benchmarks and `flashsparse tune`: the kernels with a given plan.

void check_shape(const char* op, int64_t shape, int64_t count, int64_t unaligned, bool aligned) {
  FS_CHECK(shape >= 0 && shape < count, op, ": shape must be below ", count);
  FS_CHECK(aligned || shape == unaligned, op, ": only shape ", unaligned,
           " is for weights whose rows do not lie on 16 bytes");
}

Tensor flat_gemm_planned(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                         int64_t shape, int64_t split) {
  constexpr const char* kOp = "flat_gemm_planned";
  Problem problem(kOp, kMaxFlatGemmTokens, x, weight, bias);
  check_shape(kOp, shape, dense::kFlatShapeCount, dense::kUnalignedFlat, problem.call.aligned());
  const FlatPlan plan{static_cast<int>(shape), static_cast<int>(split)};
  const int most = dense::max_split(plan.shape, problem.sizes.rows, problem.sizes.cols);
  FS_CHECK(split >= 1 && split <= most, kOp, ": split must be 1 to ", most);
  return problem.launched(dense::kFlatShapes[shape].tokens,
                          [&](const cuda::DenseCall& call) { launch_flat(problem, call, plan); });
}

Tensor gemv_planned(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                    int64_t shape) {
  constexpr const char* kOp = "gemv_planned";
  Problem problem(kOp, kMaxGemvTokens, x, weight, bias);
  check_shape(kOp, shape, dense::kGemvShapeCount, dense::kUnalignedGemv, problem.call.aligned());
  return problem.launched(dense::kGemvShapes[shape].tokens, [&](const cuda::DenseCall& call) {
    STD_CUDA_CHECK(cuda::gemv(call, static_cast<int>(shape), current_stream(weight)));
  });
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("flat_gemm", TORCH_BOX(&flat_gemm));
  m.impl("flat_gemm_planned", TORCH_BOX(&flat_gemm_planned));
  m.impl("gemv", TORCH_BOX(&gemv));
  m.impl("gemv_planned", TORCH_BOX(&gemv_planned));
}

}  // namespace
}  // namespace flashsparse
