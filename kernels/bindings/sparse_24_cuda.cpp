// SPDX-License-Identifier: Apache-2.0
// The ops of sparse_24 on CUDA: argument checks, allocation, launches on the current stream.
#include "bindings/sparse_24_cuda.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "bindings/unpacked_product_cuda.h"
#include "bindings/wgmma_arguments.h"
#include "cuda/shared/arrivals.h"
#include "cuda/sparse_24/kernel_choice.h"
#include "cuda/sparse_24/sparse_24.h"

namespace flashsparse {

sparse_24::WgmmaPlan wgmma_launch(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                                  int x_bytes) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  sparse_24::WgmmaPlan plan{};
  plan.unit = packed.layout;
  plan.x_bytes = x_bytes;
  return launch_of(
      "sparse_24", rows, cols, tokens, plan,
      [&] { return sparse_24::plan_wgmma(rows, cols, tokens, gpu, packed.layout, x_bytes); },
      [&](const auto& own) { return own.broken_rule(rows, cols, tokens, gpu); });
}

void launch_wgmma(const LinearInputs& inputs, const Units& packed, const sparse_24::WgmmaPlan& plan,
                  const TiledMatrix& x, const float* x_scales, bool early, Tensor& y) {
  const cudaStream_t stream = current_stream(inputs.x);
  Partials partials(inputs.x, plan.partial_floats(inputs.out_features, inputs.tokens));
  mma_units::WgmmaArguments arguments{};
  arguments.units = words_of(packed.units);
  arguments.scales = packed.scale_data();
  arguments.x_scales = x_scales;
  set_product(arguments, inputs, plan, partials, y, stream);
  const bool bfloat16 = y.scalar_type() == ScalarType::BFloat16;
  STD_CUDA_CHECK(cuda::sparse_24_wgmma(arguments, x, plan, bfloat16, early, stream));
}

void launch_wgmma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu, bool early,
                  Tensor& y) {
  const Tensor x = aligned_rows(inputs.x, 8);
  const auto plan = wgmma_launch(inputs, packed, gpu, 2);
  const TiledMatrix map{bits(x), inputs.tokens, inputs.in_features, row_length(x),
                        plan.copied_tokens()};
  launch_wgmma(inputs, packed, plan, map, inputs.x_scales, early, y);
}

void launch_mma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu, const FewX& x,
                Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const cudaStream_t stream = current_stream(inputs.x);
  const int64_t most = sparse_24::max_tokens(gpu, packed.layout, x.bytes);
  sparse_24::LinearPlan own{};
  own.unit = packed.layout;
  own.x_bytes = x.bytes;
  // The kernel that rounds x signals launch_dependents.
  const bool early = gpu.has_dependent_launch() && (begins_early(inputs.x) || x.is_rounded);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const sparse_24::LinearPlan plan = launch_of(
        "sparse_24", rows, cols, tokens, own,
        [&] { return sparse_24::plan_linear(rows, cols, tokens, gpu, packed.layout, x.bytes); },
        [&](const auto& each) { return each.broken_rule(rows, cols, tokens, gpu); });
    Partials partials(inputs.x, plan.partial_floats(rows));
    mma_units::Arguments arguments{};
    arguments.units = words_of(packed.units);
    arguments.scales = packed.scale_data();
    arguments.x_scales = x.scales ? x.scales + begin : nullptr;
    arguments.x = x.bits + begin * x.stride;
    arguments.x_stride = static_cast<int>(x.stride);
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.data();
    arguments.arrivals = nullptr;
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    if (plan.shares_sets(rows)) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows), &arguments.arrivals));
    }
    const bool bfloat16 = y.scalar_type() == ScalarType::BFloat16;
    if (x.bytes == 1) {
      STD_CUDA_CHECK(cuda::sparse_24_linear_codes(arguments, plan, bfloat16, early, stream));
    } else {
      STD_CUDA_CHECK(cuda::sparse_24_linear(arguments, plan, bfloat16, early, stream));
    }
  }
}

namespace {

using torch::stable::accelerator::DeviceGuard;

// Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of
// kUnitRows.
Tensor unpack_rows(const Units& packed, int64_t first, int64_t rows, int64_t in, ScalarType dtype) {
  Tensor weight = allocate_like(packed.units, {rows, in}, dtype);
  const int64_t skipped = sparse_24::unit_rows(first) * sparse_24::unit_cols(in);
  const float* const scales = packed.scale_data();
  STD_CUDA_CHECK(cuda::sparse_24_unpack(words_of(packed.units) + skipped * packed.layout.words(),
                                        scales ? scales + first : nullptr, packed.layout, rows, in,
                                        dtype == ScalarType::BFloat16, mutable_bits(weight),
                                        current_stream(packed.units)));
  return weight;
}

Tensor sparse_24_unpack(const Tensor& units, int64_t out, int64_t in, ScalarType dtype,
                        const std::optional<Tensor>& scales, const std::string& values,
                        int64_t group) {
  check_weight_dtype(dtype);
  const Units packed(units, scales, values, group);
  packed.check(out, in);
  const DeviceGuard guard(units.get_device_index());
  return unpack_rows(packed, 0, out, in, dtype);
}

// Fills y by mma.sp, for 16-bit x.
void mma_product(const LinearInputs& inputs, const Units& packed, const Gpu& gpu, Tensor& y) {
  const Tensor x = aligned_rows(inputs.x, 8);
  launch_mma(inputs, packed, gpu, {bits(x), row_length(x), inputs.x_scales, 2}, y);
}

// Sparse tensor cores, by the decode kernel or the prefill kernel up to the caller's numbers of
// tokens, then unpacking and the library's dense product. The choice is made on the host, so that
// CUDA graphs can capture it.
Tensor sparse_24_linear(const Tensor& x, const Tensor& units, int64_t rows, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, std::optional<int64_t> sparse_tokens,
                        std::optional<int64_t> few_tokens, const std::optional<Tensor>& scales,
                        const std::string& values, int64_t group,
                        const std::optional<Tensor>& x_scales) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_weight_dtype(weight_dtype);
  const Units packed(units, scales, values, group);
  LinearInputs inputs(x, rows, bias, units, "units");
  inputs.take_x_scales(x_scales, weight_dtype, values);
  const int64_t cols = inputs.in_features;
  packed.check(rows, cols);
  const DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(units);
  const Kernel kernel = chosen_kernel(
      "sparse_24", {Kernel::kFew, Kernel::kMany}, x.scalar_type() == weight_dtype, [&] {
        return sparse_24::choose_kernel(rows, cols, inputs.tokens, gpu, packed.layout, 2,
                                        {sparse_tokens, few_tokens});
      });
  if (kernel == Kernel::kMany) {
    launch_wgmma(inputs, packed, gpu, begins_early(inputs.x), y);
  } else if (kernel == Kernel::kFew) {
    mma_product(inputs, packed, gpu, y);
  } else {
    unpacked_product_cuda(inputs, weight_dtype, sparse_24::kUnitRows, y,
                          [&](int64_t first, int64_t count) {
                            return unpack_rows(packed, first, count, cols, weight_dtype);
                          });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("sparse_24_unpack", TORCH_BOX(&sparse_24_unpack));
  m.impl("sparse_24_linear", TORCH_BOX(&sparse_24_linear));
}

}  // namespace
}  // namespace flashsparse
