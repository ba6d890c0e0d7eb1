// SPDX-License-Identifier: Apache-2.0
// The ops of exact_units on CUDA: argument checks, allocation, launches on the current stream.
#include <algorithm>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "bindings/exact_units.h"
#include "bindings/linear.h"
#include "bindings/override.h"
#include "bindings/sparse_24_cuda.h"
#include "bindings/unpacked_product.h"
#include "bindings/wgmma_arguments.h"
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/kernel_choice.h"
#include "cuda/exact_units/widen_24.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using exact_units::kWidened;
using exact_units::LinearPlan;
using exact_units::WgmmaPlan;
using torch::stable::accelerator::DeviceGuard;

void check(const ExactUnits& packed, int64_t out, int64_t in) {
  check_on_cuda(packed.units, "units");
  check_exact_units(packed, out, in);
}

// Of rows of units from a first one on.
exact_units::Exceptions exceptions(const ExactUnits& packed, int64_t first = 0, int64_t in = 1) {
  const int64_t skipped = first * exact_units::unit_cols(in) * packed.unit_slots();
  return {words_of(packed.slots) + skipped, words_of(packed.list), words_of(packed.offsets) + first,
          packed.unit_slots()};
}

// Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of
// kUnitRows.
Tensor unpack_rows(const ExactUnits& packed, int64_t first, int64_t rows, int64_t in) {
  Tensor weight = allocate_like(packed.units, {rows, in}, ScalarType::BFloat16);
  const int64_t unit_row = first / exact_units::kUnitRows;
  const int64_t words = unit_row * exact_units::unit_cols(in) * packed.units.size(2);
  STD_CUDA_CHECK(cuda::exact_units_unpack(words_of(packed.units) + words, packed.kind(),
                                          packed.scales.const_data_ptr<float>() + first,
                                          exceptions(packed, unit_row, in), rows, in,
                                          mutable_bits(weight), current_stream(packed.units)));
  return weight;
}

Tensor exact_units_unpack(const Tensor& units, const Tensor& scales, const Tensor& slots,
                          const Tensor& list, const Tensor& offsets, int64_t out, int64_t in) {
  const ExactUnits packed{units, scales, slots, list, offsets};
  check(packed, out, in);
  const DeviceGuard guard(units.get_device_index());
  return unpack_rows(packed, 0, out, in);
}

// Fills y by mma, with one launch for each max_tokens tokens.
void mma_product(const LinearInputs& inputs, const ExactUnits& packed, const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, 8);
  const int64_t stride = row_length(x), most = exact_units::max_tokens(gpu);
  const cudaStream_t stream = current_stream(x);
  LinearPlan own{};
  own.unit_slots = packed.unit_slots();
  own.kind = packed.kind();
  const bool early = gpu.has_dependent_launch() && begins_early(inputs.x);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const LinearPlan plan = launch_of(
        "exact_units", rows, cols, tokens, own,
        [&] { return exact_units::plan_linear(rows, cols, tokens, gpu, own.kind, own.unit_slots); },
        [&](const auto& each) { return each.broken_rule(rows, cols, tokens, gpu); });
    Partials partials(x, plan.partial_floats(rows));
    exact_units::Arguments arguments{};
    arguments.units = words_of(packed.units);
    arguments.scales = packed.scales.const_data_ptr<float>();
    arguments.exceptions = exceptions(packed);
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
    STD_CUDA_CHECK(cuda::exact_units_linear(arguments, plan, early, stream));
  }
}

// Fills y by wgmma in one launch.
void wgmma_product(const LinearInputs& inputs, const ExactUnits& packed, const Gpu& gpu,
                   Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  WgmmaPlan plan{};
  plan.unit_slots = packed.unit_slots();
  plan.kind = packed.kind();
  plan = launch_of(
      "exact_units", rows, cols, tokens, plan,
      [&] { return exact_units::plan_wgmma(rows, cols, tokens, gpu, plan.kind, plan.unit_slots); },
      [&](const auto& own) { return own.broken_rule(rows, cols, tokens, gpu); });
  Partials partials(x, plan.partial_floats(rows, tokens));
  exact_units::WgmmaArguments arguments{};
  arguments.units = words_of(packed.units);
  arguments.scales = packed.scales.const_data_ptr<float>();
  arguments.exceptions = exceptions(packed);
  arguments.x = bits(x);
  arguments.x_stride = static_cast<int>(row_length(x));
  set_product(arguments, inputs, plan, partials, y, stream);
  arguments.weight_stages = plan.weight_stages();
  const TiledMatrix map{bits(x), tokens, cols, row_length(x), plan.copied_tokens()};
  STD_CUDA_CHECK(cuda::exact_units_wgmma(arguments, map, plan, begins_early(inputs.x), stream));
}

// Whether units become those of sparse_24, to be multiplied by wgmma.sp, and not a dense weight.
bool widens(const ExactUnits& packed, const LinearInputs& inputs, const Gpu& gpu) {
  return packed.kind() == exact_units::Kind::k24 && gpu.has_wgmma() &&
         inputs.x.scalar_type() == ScalarType::BFloat16 &&
         exact_units::can_widen(inputs.out_features, inputs.in_features);
}

// Fills y by wgmma.sp on units of sparse_24.
void widened_product(const LinearInputs& inputs, const ExactUnits& packed, const Gpu& gpu,
                     Tensor& y) {
  Tensor units = allocate_like(
      packed.units, {packed.units.size(0), packed.units.size(1), int64_t{kWidened.words()}});
  STD_CUDA_CHECK(cuda::exact_units_widen_24(
      words_of(packed.units), packed.scales.const_data_ptr<float>(), exceptions(packed),
      inputs.out_features, inputs.in_features, mutable_words(units), current_stream(units)));
  const std::optional<Tensor> no_scales;
  launch_wgmma(inputs, Units(units, no_scales, "native", 0), gpu, false, y);
}

// Tensor cores on decoded units, by the decode kernel or the prefill kernel up to the
// caller's numbers of tokens, then unpacking and the library's product, or that of sparse_24 for
// 2:4. The choice is made on the host, so that CUDA graphs can capture it.
Tensor exact_units_linear(const Tensor& x, const Tensor& units, const Tensor& scales,
                          const Tensor& slots, const Tensor& list, const Tensor& offsets,
                          int64_t rows, ScalarType weight_dtype, const std::optional<Tensor>& bias,
                          std::optional<int64_t> sparse_tokens, std::optional<int64_t> few_tokens) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  FS_CHECK(weight_dtype == ScalarType::BFloat16, "exact_units weights are bfloat16");
  const ExactUnits packed{units, scales, slots, list, offsets};
  const LinearInputs inputs(x, rows, bias, units, "units");
  const int64_t cols = inputs.in_features;
  check(packed, rows, cols);
  const DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(units);
  const Kernel kernel = chosen_kernel(
      "exact_units", {Kernel::kFew, Kernel::kMany}, x.scalar_type() == weight_dtype, [&] {
        return exact_units::choose_kernel(rows, cols, inputs.tokens, gpu, packed.kind(),
                                          {sparse_tokens, few_tokens});
      });
  if (kernel == Kernel::kMany) {
    wgmma_product(inputs, packed, gpu, y);
  } else if (kernel == Kernel::kFew) {
    mma_product(inputs, packed, gpu, y);
  } else if (widens(packed, inputs, gpu)) {
    widened_product(inputs, packed, gpu, y);
  } else {
    unpacked_product(
        inputs, weight_dtype, exact_units::kUnitRows, y,
        [&](int64_t first, int64_t count) { return unpack_rows(packed, first, count, cols); });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("exact_units_unpack", TORCH_BOX(&exact_units_unpack));
  m.impl("exact_units_linear", TORCH_BOX(&exact_units_linear));
}

}  // namespace
}  // namespace flashsparse
