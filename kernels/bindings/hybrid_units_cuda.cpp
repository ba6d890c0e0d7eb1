// SPDX-License-Identifier: Apache-2.0
// The ops of hybrid_units on CUDA: argument checks, allocation, launches on the current stream.
#include <algorithm>
#include <optional>
#include <string>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "bindings/hybrid_units.h"
#include "bindings/linear.h"
#include "bindings/override.h"
#include "bindings/sparse_24.h"
#include "bindings/unpacked_product.h"
#include "bindings/wgmma_arguments.h"
#include "cuda/hybrid_units/hybrid_units.h"
#include "cuda/hybrid_units/kernel_choice.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using hybrid_units::LinearPlan;
using hybrid_units::WgmmaPlan;
using torch::stable::accelerator::DeviceGuard;

// A weight's tensors, and their layout.
struct HybridUnits {
  const Tensor &units, &offsets;
  const std::optional<Tensor>& scales;  // of rows
  const hybrid_units::UnitLayout layout;

  HybridUnits(const Tensor& units_, const Tensor& offsets_, const std::optional<Tensor>& scales_,
              const std::string& values, int64_t group)
      : units(units_), offsets(offsets_), scales(scales_), layout(sparse_24_layout(values, group)) {
    check_on_cuda(units, "units");
  }

  void check(int64_t out, int64_t in) const {
    check_hybrid_units(units, offsets, scales, out, in, layout);
  }
  // Sixteenths of the units of a weight.
  int dense_parts(int64_t out, int64_t in) const {
    return hybrid_units::dense_parts(units.size(0) * 4, out, in, layout);
  }
  const int32_t* offset_data() const { return offsets.const_data_ptr<int32_t>(); }
  const float* scale_data() const { return scales ? scales->const_data_ptr<float>() : nullptr; }
};

// Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of
// kUnitRows.
Tensor unpack_rows(const HybridUnits& packed, int64_t first, int64_t rows, int64_t in,
                   ScalarType dtype) {
  Tensor weight = allocate_like(packed.units, {rows, in}, dtype);
  const int64_t skipped = hybrid_units::unit_rows(first) * hybrid_units::unit_cols(in);
  const float* const scales = packed.scale_data();
  STD_CUDA_CHECK(cuda::hybrid_units_unpack(words_of(packed.units), packed.offset_data() + skipped,
                                           scales ? scales + first : nullptr, packed.layout, rows,
                                           in, dtype == ScalarType::BFloat16, mutable_bits(weight),
                                           current_stream(packed.units)));
  return weight;
}

Tensor hybrid_units_unpack(const Tensor& units, const Tensor& offsets, int64_t out, int64_t in,
                           ScalarType dtype, const std::optional<Tensor>& scales,
                           const std::string& values, int64_t group) {
  check_weight_dtype(dtype);
  const HybridUnits packed(units, offsets, scales, values, group);
  packed.check(out, in);
  const DeviceGuard guard(units.get_device_index());
  return unpack_rows(packed, 0, out, in, dtype);
}

// Fills y by mma.sp, with one launch for each max_tokens tokens.
void mma_product(const LinearInputs& inputs, const HybridUnits& packed, const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, 8);
  const int64_t stride = row_length(x), most = hybrid_units::max_tokens(gpu, packed.layout);
  const cudaStream_t stream = current_stream(x);
  LinearPlan own{};
  own.unit = packed.layout;
  own.dense = packed.dense_parts(rows, cols);
  const bool early = gpu.has_dependent_launch() && begins_early(inputs.x);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const LinearPlan plan = launch_of(
        "hybrid_units", rows, cols, tokens, own,
        [&] { return hybrid_units::plan_linear(rows, cols, tokens, gpu, own.unit, own.dense); },
        [&](const auto& each) { return each.broken_rule(rows, cols, tokens, gpu); });
    Partials partials(x, plan.partial_floats(rows));
    hybrid_units::Arguments arguments{};
    arguments.units = words_of(packed.units);
    arguments.offsets = packed.offset_data();
    arguments.scales = packed.scale_data();
    arguments.x = bits(x) + begin * stride;
    arguments.x_stride = static_cast<int>(stride);
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.data();
    arguments.rows = static_cast<int>(rows);
    arguments.cols = static_cast<int>(cols);
    arguments.tokens = static_cast<int>(tokens);
    if (plan.shares_sets(rows)) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows), &arguments.arrivals));
    }
    const bool bfloat16 = y.scalar_type() == ScalarType::BFloat16;
    STD_CUDA_CHECK(cuda::hybrid_units_linear(arguments, plan, bfloat16, early, stream));
  }
}

// Fills y by wgmma.sp in one launch.
void wgmma_product(const LinearInputs& inputs, const HybridUnits& packed, const Gpu& gpu,
                   Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  WgmmaPlan plan{};
  plan.unit = packed.layout;
  plan.dense = packed.dense_parts(rows, cols);
  plan = launch_of(
      "hybrid_units", rows, cols, tokens, plan,
      [&] { return hybrid_units::plan_wgmma(rows, cols, tokens, gpu, plan.unit, plan.dense); },
      [&](const auto& own) { return own.broken_rule(rows, cols, tokens, gpu); });
  Partials partials(x, plan.partial_floats(rows, tokens));
  hybrid_units::WgmmaArguments arguments{};
  arguments.units = words_of(packed.units);
  arguments.offsets = packed.offset_data();
  arguments.scales = packed.scale_data();
  set_product(arguments, inputs, plan, partials, y, stream);
  const TiledMatrix map{bits(x), tokens, cols, row_length(x), plan.copied_tokens()};
  const bool bfloat16 = y.scalar_type() == ScalarType::BFloat16;
  STD_CUDA_CHECK(
      cuda::hybrid_units_wgmma(arguments, map, plan, bfloat16, begins_early(inputs.x), stream));
}

// Sparse tensor cores, by the decode kernel or the prefill kernel up to the caller's numbers of
// tokens, then unpacking and the library's product. The choice is made on the host, so that CUDA
// graphs can capture it.
Tensor hybrid_units_linear(const Tensor& x, const Tensor& units, const Tensor& offsets,
                           int64_t rows, ScalarType weight_dtype, const std::optional<Tensor>& bias,
                           std::optional<int64_t> sparse_tokens, std::optional<int64_t> few_tokens,
                           const std::optional<Tensor>& scales, const std::string& values,
                           int64_t group) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_weight_dtype(weight_dtype);
  const HybridUnits packed(units, offsets, scales, values, group);
  const LinearInputs inputs(x, rows, bias, units, "units");
  const int64_t cols = inputs.in_features;
  packed.check(rows, cols);
  const DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(units);
  const Kernel kernel = chosen_kernel(
      "hybrid_units", {Kernel::kFew, Kernel::kMany}, x.scalar_type() == weight_dtype, [&] {
        return hybrid_units::choose_kernel(inputs.tokens, gpu, packed.layout,
                                           {sparse_tokens, few_tokens});
      });
  if (kernel == Kernel::kMany) {
    wgmma_product(inputs, packed, gpu, y);
  } else if (kernel == Kernel::kFew) {
    mma_product(inputs, packed, gpu, y);
  } else {
    unpacked_product(inputs, weight_dtype, hybrid_units::kUnitRows, y,
                     [&](int64_t first, int64_t count) {
                       return unpack_rows(packed, first, count, cols, weight_dtype);
                     });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("hybrid_units_unpack", TORCH_BOX(&hybrid_units_unpack));
  m.impl("hybrid_units_linear", TORCH_BOX(&hybrid_units_linear));
}

}  // namespace
}  // namespace flashsparse
