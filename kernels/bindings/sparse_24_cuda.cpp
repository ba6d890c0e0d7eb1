// SPDX-License-Identifier: Apache-2.0
// The ops of sparse_24 on CUDA: argument checks, allocation, launches on the current stream.
#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/sparse_24.h"
#include "bindings/unpacked_product.h"
#include "cuda/arrivals.h"
#include "cuda/sparse_24/sparse_24.h"

namespace flashsparse {
namespace {

using sparse_24::LinearPlan;
using torch::stable::accelerator::DeviceGuard;

// Rows [first, first + rows) of a weight with `in` columns; first is a multiple of kUnitRows.
Tensor unpack_rows(const Tensor& units, int64_t first, int64_t rows, int64_t in, ScalarType dtype) {
  Tensor weight = allocate_like(units, {rows, in}, dtype);
  const int64_t skipped = sparse_24::unit_rows(first) * sparse_24::unit_cols(in);
  STD_CUDA_CHECK(cuda::sparse_24_unpack(words_of(units) + skipped * sparse_24::kUnitWords, rows, in,
                                        mutable_bits(weight), current_stream(units)));
  return weight;
}

Tensor sparse_24_unpack(const Tensor& units, int64_t out, int64_t in, ScalarType dtype) {
  check_weight_dtype(dtype);
  check_on_cuda(units, "units");
  check_sparse_24(units, out, in);
  const DeviceGuard guard(units.get_device_index());
  return unpack_rows(units, 0, out, in, dtype);
}

// The kernel reads x 16 bytes at a time: rows are a multiple of 8 long, with zeros at the end.
Tensor aligned_x(const LinearInputs& inputs) {
  const Tensor x = inputs.by_token(inputs.x, inputs.in_features);
  const int64_t over = inputs.in_features % 8;
  if (over != 0) return torch::stable::pad(x, {0, 8 - over});
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0) return torch::stable::clone(x);
  return x;
}

// Fills y, a launch for each max_tokens tokens: by `given`, or by each slab's own plan.
void sparse_product(const LinearInputs& inputs, const Tensor& units, const Gpu& gpu,
                    const std::optional<LinearPlan>& given, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_x(inputs);
  const cudaStream_t stream = current_stream(x);
  const int64_t most = given ? given->info().tokens : sparse_24::max_tokens(gpu);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const LinearPlan plan = given ? *given : sparse_24::plan_linear(rows, cols, tokens, gpu);
    const char* const rule = plan.broken_rule(rows, cols, tokens, gpu);
    FS_CHECK(!rule, "no launch for ", tokens, " tokens of a [", rows, ", ", cols,
             "] weight: ", rule, ". Remedy: sparse_tokens=0, which unpacks it");
    Tensor partials = allocate_like(x, {plan.partial_floats(rows)}, ScalarType::Float);
    sparse_24::Arguments arguments;
    arguments.units = words_of(units);
    arguments.x = bits(x) + begin * x.size(1);
    arguments.x_stride = static_cast<int>(x.size(1));
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.mutable_data_ptr<float>();
    arguments.arrivals = nullptr;
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    if (plan.shares_sets(rows)) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows), &arguments.arrivals));
    }
    const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
    STD_CUDA_CHECK(cuda::sparse_24_linear(arguments, plan, bfloat16, stream));
  }
}

// Sparse tensor cores for few tokens, unpacking and the library's dense product for many. How many
// is the caller's to say: known on the host, so that a CUDA graph can hold the decision.
Tensor sparse_24_linear(const Tensor& x, const Tensor& units, int64_t rows, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  check_weight_dtype(weight_dtype);
  check_on_cuda(units, "units");
  const LinearInputs inputs(x, rows, bias, units, "units");
  const int64_t cols = inputs.in_features;
  check_sparse_24(units, rows, cols);
  const DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const int64_t most = sparse_tokens.value_or(sparse_24::kMaxSparseTokens);
  if (x.scalar_type() == weight_dtype && inputs.tokens <= most) {
    sparse_product(inputs, units, gpu_of(units), std::nullopt, y);
  } else {
    unpacked_product(inputs, weight_dtype, sparse_24::kUnitRows, y,
                     [&](int64_t first, int64_t count) {
                       return unpack_rows(units, first, count, cols, weight_dtype);
                     });
  }
  return y;
}

// For benchmarks: the sparse kernel by a plan of the caller's choice.
Tensor sparse_24_linear_planned(const Tensor& x, const Tensor& units, int64_t rows,
                                ScalarType weight_dtype, const std::optional<Tensor>& bias,
                                const std::vector<int64_t>& numbers) {
  check_weight_dtype(weight_dtype);
  check_on_cuda(units, "units");
  const LinearInputs inputs(x, rows, bias, units, "units");
  check_sparse_24(units, rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  FS_CHECK(numbers.size() == 6, "a plan has 6 numbers, not ", numbers.size());
  for (const int64_t number : numbers) {
    FS_CHECK(number >= 0 && number <= 1 << 20, "a plan has no number like ", number);
  }
  const auto number = [&](int i) { return static_cast<int>(numbers[i]); };
  const LinearPlan plan{number(0), number(1), number(2), number(3), number(4), number(5)};
  const DeviceGuard guard(units.get_device_index());
  const Gpu gpu = gpu_of(units);
  const char* const rule = plan.broken_rule(rows, inputs.in_features, inputs.tokens, gpu);
  FS_CHECK(!rule, "no such plan for ", inputs.tokens, " tokens of a [", rows, ", ",
           inputs.in_features, "] weight: ", rule);
  Tensor y = inputs.new_y();
  sparse_product(inputs, units, gpu, plan, y);
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("sparse_24_unpack", TORCH_BOX(&sparse_24_unpack));
  m.impl("sparse_24_linear", TORCH_BOX(&sparse_24_linear));
  m.impl("sparse_24_linear_planned", TORCH_BOX(&sparse_24_linear_planned));
}

}  // namespace
}  // namespace flashsparse
