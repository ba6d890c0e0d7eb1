// SPDX-License-Identifier: Apache-2.0
// The products of tiled_bitmap on CUDA: argument checks, allocation, launches on the current
// stream.
#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/tiled_bitmap_cuda.h"
#include "bindings/tiled_bitmap_wgmma_cuda.h"
#include "bindings/unpacked_product.h"
#include "cuda/arrivals.h"
#include "cuda/tiled_bitmap/linear.h"

namespace flashsparse {
namespace {

using tiled_bitmap::LinearPlan;
using torch::stable::accelerator::DeviceGuard;

// Fills y, a launch for each max_tokens tokens: by `given`, or by each slab's own plan.
void sparse_product(const LinearInputs& inputs, const Tensor& lines, const Tensor& offsets,
                    const Gpu& gpu, const std::optional<LinearPlan>& given, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  const int64_t most = given ? given->info().tokens : tiled_bitmap::max_tokens(gpu);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const LinearPlan plan =
        given ? *given : tiled_bitmap::plan_linear(rows, cols, lines.size(0), tokens, gpu);
    const char* const rule = plan.broken_rule(rows, cols, tokens, gpu);
    FS_CHECK(!rule, "no launch for ", tokens, " tokens of a [", rows, ", ", cols,
             "] weight: ", rule, ". Remedy: sparse_tokens=0, which unpacks it");
    Tensor partials = allocate_like(x, {plan.partial_floats(rows)}, ScalarType::Float);
    tiled_bitmap::Arguments arguments{};
    arguments.units = words_of(lines);
    arguments.offsets = offsets.const_data_ptr<int32_t>();
    arguments.x = bits(x) + begin * row_length(x);
    arguments.x_stride = static_cast<int>(row_length(x));
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.mutable_data_ptr<float>();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    if (plan.shares_sets(rows)) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows), &arguments.arrivals));
    }
    const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
    STD_CUDA_CHECK(cuda::tiled_bitmap_linear(arguments, plan, bfloat16, stream));
  }
}

// The kernel for few tokens, the one for many, or unpacking and the library's dense product. For
// how many each is the caller's to say, or else constants of the GPU and the size: known on the
// host, so that a CUDA graph can hold the decision.
Tensor tiled_bitmap_linear(const Tensor& x, const Tensor& lines, const Tensor& offsets,
                           int64_t rows, ScalarType weight_dtype, const std::optional<Tensor>& bias,
                           std::optional<int64_t> sparse_tokens,
                           std::optional<int64_t> few_tokens) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_weight_dtype(weight_dtype);
  check_on_cuda(lines, "weight_packed");
  const LinearInputs inputs(x, rows, bias, lines, "weight_packed");
  const int64_t cols = inputs.in_features;
  check_readable_units(lines, offsets, rows, cols);
  const DeviceGuard guard(lines.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(lines);
  const int64_t most = sparse_tokens.value_or(tiled_bitmap::max_sparse_tokens(gpu));
  if (x.scalar_type() == weight_dtype && inputs.tokens <= most) {
    if (gpu.hopper && inputs.tokens > few_tokens.value_or(tiled_bitmap::few_tokens(rows, cols))) {
      wgmma_product(inputs, lines, offsets, gpu, std::nullopt, y);
    } else {
      sparse_product(inputs, lines, offsets, gpu, std::nullopt, y);
    }
  } else {
    unpacked_product(inputs, weight_dtype, tiled_bitmap::kUnitRows, y,
                     [&](int64_t first, int64_t count) {
                       return unpack_unit_rows(lines, offsets, first, count, cols, weight_dtype);
                     });
  }
  return y;
}

// For benchmarks: the sparse kernel by a plan of the caller's choice.
Tensor tiled_bitmap_linear_planned(const Tensor& x, const Tensor& lines, const Tensor& offsets,
                                   int64_t rows, ScalarType weight_dtype,
                                   const std::optional<Tensor>& bias,
                                   const std::vector<int64_t>& numbers) {
  check_weight_dtype(weight_dtype);
  check_on_cuda(lines, "weight_packed");
  const LinearInputs inputs(x, rows, bias, lines, "weight_packed");
  const int64_t cols = inputs.in_features;
  check_readable_units(lines, offsets, rows, cols);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  FS_CHECK(numbers.size() == 8, "a plan has 8 numbers, not ", numbers.size());
  for (const int64_t number : numbers) {
    FS_CHECK(number >= 0 && number <= 1 << 20, "a plan has no number like ", number);
  }
  const auto number = [&](int i) { return static_cast<int>(numbers[i]); };
  const LinearPlan plan{number(0), number(1), number(2), number(3),
                        number(4), number(5), number(6), number(7) != 0};
  const DeviceGuard guard(lines.get_device_index());
  const Gpu gpu = gpu_of(lines);
  const char* const rule = plan.broken_rule(rows, cols, inputs.tokens, gpu);
  FS_CHECK(!rule, "no such plan for ", inputs.tokens, " tokens of a [", rows, ", ", cols,
           "] weight: ", rule);
  Tensor y = inputs.new_y();
  sparse_product(inputs, lines, offsets, gpu, plan, y);
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_bitmap_linear", TORCH_BOX(&tiled_bitmap_linear));
  m.impl("tiled_bitmap_linear_planned", TORCH_BOX(&tiled_bitmap_linear_planned));
}

}  // namespace
}  // namespace flashsparse
