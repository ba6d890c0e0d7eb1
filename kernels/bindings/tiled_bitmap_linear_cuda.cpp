// SPDX-License-Identifier: Apache-2.0
// The products of tiled_bitmap on CUDA: argument checks, allocation, launches on the current
// stream.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "bindings/linear.h"
#include "bindings/override.h"
#include "bindings/tiled_bitmap_cuda.h"
#include "bindings/unpacked_product.h"
#include "bindings/wgmma_arguments.h"
#include "cuda/mma_units/quantise_x.h"
#include "cuda/mma_units/scale_sums_launch.h"
#include "cuda/shared/arrivals.h"
#include "cuda/tiled_bitmap/kernel_choice.h"
#include "cuda/tiled_bitmap/linear.h"
#include "cuda/tiled_bitmap/wgmma.h"

namespace flashsparse {
namespace {

using tiled_bitmap::LinearPlan;
using tiled_bitmap::Operands;
using torch::stable::accelerator::DeviceGuard;

Operands operands_of(const BitmapUnits& units) {
  return units.scales ? Operands::kCodes : Operands::kNative;
}

// Quantized x, with scales and sums of tokens.
struct RoundedX {
  Tensor codes, scales, sums;

  // `x` has rows that kernels can read. Codes are allocated for `most` tokens, if that is more.
  // `early`: quantize with PDL.
  RoundedX(const Tensor& x, int64_t tokens, bool early, int64_t most = 0)
      : codes(allocate_like(x, {std::max(tokens, most), mma_units::quantised_stride(row_length(x))},
                            ScalarType::Char)),
        scales(allocate_like(x, {tokens}, ScalarType::Float)),
        sums(allocate_like(x, {tokens}, ScalarType::Int)) {
    STD_CUDA_CHECK(cuda::tiled_bitmap_quantise_x(
        bits(x), row_length(x), tokens, x.scalar_type() == ScalarType::BFloat16, early,
        mutable_bits(codes), scales.mutable_data_ptr<float>(), mutable_words(sums),
        current_stream(x)));
  }
};

// Fills y, with one launch for each max_tokens tokens.
void sparse_product(const LinearInputs& inputs, const BitmapUnits& units, Operands operands,
                    const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  const bool early = gpu.has_dependent_launch() && begins_early(inputs.x);
  std::optional<RoundedX> rounded;
  if (operands == Operands::kRounded) rounded.emplace(x, inputs.tokens, early);
  const Tensor& read = rounded ? rounded->codes : x;
  const int64_t stride = row_length(read) * read.element_size() / sizeof(uint16_t);
  const int64_t most = tiled_bitmap::max_tokens(gpu);
  LinearPlan own{};
  own.operands = operands;
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    LinearPlan plan = launch_of(
        "tiled_bitmap", rows, cols, tokens, own,
        [&] {
          return tiled_bitmap::plan_linear(rows, cols, units.lines.size(0), tokens, gpu, operands);
        },
        [&](const auto& each) { return each.broken_rule(rows, cols, tokens, gpu); });
    // After a launch of this call, PDL pays if the plan says so.
    if (!rounded && begin == 0) plan.is_early &= early;
    Partials partials(x, plan.partial_floats(rows));
    tiled_bitmap::Arguments arguments{};
    arguments.units = words_of(units.lines);
    arguments.offsets = units.offsets.const_data_ptr<int32_t>();
    arguments.scales = units.scale_data();
    arguments.x = bits(read) + begin * stride;
    arguments.x_stride = static_cast<int>(stride);
    if (rounded) {
      arguments.x_scales = rounded->scales.const_data_ptr<float>() + begin;
      arguments.x_sums = words_of(rounded->sums) + begin;
    }
    arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    arguments.y = mutable_bits(y) + begin * rows;
    arguments.partials = partials.data();
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

// Fills y by wgmma in one launch.
void wgmma_product(const LinearInputs& inputs, const BitmapUnits& units, Operands operands,
                   const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  std::optional<RoundedX> rounded;
  if (operands == Operands::kRounded) {
    rounded.emplace(x, tokens, gpu.has_dependent_launch() && begins_early(inputs.x));
  }
  const auto plan = launch_of(
      "tiled_bitmap", rows, cols, tokens, tiled_bitmap::WgmmaPlan{},
      [&] {
        return tiled_bitmap::plan_wgmma(rows, cols, tokens, units.lines.size(0), gpu, operands);
      },
      [&](const auto& own) { return own.broken_rule(rows, cols, tokens, gpu); });
  Partials partials(x, plan.partial_floats(rows, tokens));
  tiled_bitmap::WgmmaArguments arguments{};
  arguments.units = words_of(units.lines);
  arguments.offsets = units.offsets.const_data_ptr<int32_t>();
  arguments.scales = units.scale_data();
  set_product(arguments, inputs, plan, partials, y, stream);
  arguments.ring_lines = plan.ring_lines;
  const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
  TiledMatrix map{bits(x), tokens, cols, row_length(x), plan.copied_tokens()};
  if (rounded) {
    arguments.x_scales = rounded->scales.const_data_ptr<float>();
    const int64_t width = row_length(rounded->codes) / 2;  // in 16 bits
    map = {bits(rounded->codes), tokens, width, width, plan.copied_tokens()};
  }
  STD_CUDA_CHECK(cuda::tiled_bitmap_wgmma(arguments, map, plan, operands, bfloat16, stream));
}

// Fills y by unpacking int8 values for torch's product of int8 by int8: the same bits as those of
// sparse_product, since accumulation is exact.
void unpacked_rounded_product(const LinearInputs& inputs, const BitmapUnits& units, const Gpu& gpu,
                              Tensor& y) {
  constexpr int64_t kLeastTokens = 32;  // torch rejects products of 16 or fewer
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  const RoundedX rounded(x, tokens, gpu.has_dependent_launch() && begins_early(inputs.x),
                         kLeastTokens);
  const int64_t summed = rounded.codes.size(0), stride = row_length(rounded.codes);
  const int64_t sum_bytes = summed * static_cast<int64_t>(sizeof(int32_t));
  by_panels(rows, tiled_bitmap::kUnitRows, stride + sum_bytes, [&](int64_t first, int64_t count) {
    const Tensor weight = units.unpack_beside_x(first, count, cols, stride);
    const Tensor sums = detail::library_int8_sums(rounded.codes, weight);
    mma_units::SumsToScale panel{};
    panel.sums = words_of(sums);
    panel.sums_stride = row_length(sums);
    panel.scales = units.scale_data() + first;
    panel.x_scales = rounded.scales.const_data_ptr<float>();
    panel.bias = inputs.bias ? bits(*inputs.bias) + first : nullptr;
    panel.y = mutable_bits(y) + first;
    panel.y_stride = rows;
    panel.rows = static_cast<int>(count);
    panel.tokens = tokens;
    STD_CUDA_CHECK(cuda::scale_sums(panel, x.scalar_type() == ScalarType::BFloat16, stream));
  });
}

// The decode kernel, the prefill kernel, or unpacking and the library's dense product, by the
// caller's numbers of tokens, or else by constants of the GPU and the size. The choice is made on
// the host, so that CUDA graphs can capture it.
Tensor tiled_bitmap_linear(const Tensor& x, const Tensor& lines, const Tensor& offsets,
                           int64_t rows, ScalarType weight_dtype, const std::optional<Tensor>& bias,
                           std::optional<int64_t> sparse_tokens, std::optional<int64_t> few_tokens,
                           const std::optional<Tensor>& scales) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_weight_dtype(weight_dtype);
  check_on_cuda(lines, "weight_packed");
  const LinearInputs inputs(x, rows, bias, lines, "weight_packed");
  const int64_t cols = inputs.in_features;
  const BitmapUnits units{lines, offsets, scales};
  units.check(rows, cols);
  const DeviceGuard guard(lines.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(lines);
  const Operands operands = operands_of(units);
  const bool same_dtype = x.scalar_type() == weight_dtype;
  const auto choose = [&] {
    return tiled_bitmap::choose_kernel(rows, cols, inputs.tokens, gpu, operands,
                                       {sparse_tokens, few_tokens});
  };
  const Kernel kernel =
      chosen_kernel("tiled_bitmap", {Kernel::kFew, Kernel::kMany}, same_dtype, choose);
  if (kernel == Kernel::kMany) {
    wgmma_product(inputs, units, operands, gpu, y);
  } else if (kernel != Kernel::kUnpacked) {
    sparse_product(inputs, units, operands, gpu, y);
  } else {
    unpacked_product(inputs, weight_dtype, tiled_bitmap::kUnitRows, y,
                     [&](int64_t first, int64_t count) {
                       return units.unpack_rows(first, count, cols, weight_dtype);
                     });
  }
  return y;
}

// For x quantized to the weight's type.
void check_rounded(const std::string& values, int64_t cols) {
  FS_CHECK(values == "int8", "activations are rounded to int8, not ", values,
           ". Remedy: tiled_bitmap_linear, which multiplies 16-bit ones");
  FS_CHECK(cols <= tiled_bitmap::kMostRoundedCols, "a weight of ", cols,
           " columns is too wide for int32 sums, which have room for ",
           tiled_bitmap::kMostRoundedCols, ". Remedy: activations=native");
}

// A product in the dtype of the weight: fill(inputs, gpu, y) fills y.
template <class Fill>
Tensor product(const Tensor& x, const BitmapUnits& units, int64_t rows, ScalarType weight_dtype,
               const std::optional<Tensor>& bias, const Fill& fill) {
  check_weight_dtype(weight_dtype);
  check_on_cuda(units.lines, "weight_packed");
  const LinearInputs inputs(x, rows, bias, units.lines, "weight_packed");
  units.check(rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  const DeviceGuard guard(units.lines.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens > 0) fill(inputs, gpu_of(units.lines), y);
  return y;
}

Tensor tiled_bitmap_linear_rounded(const Tensor& x, const Tensor& lines, const Tensor& offsets,
                                   const Tensor& scales_, int64_t rows, ScalarType weight_dtype,
                                   const std::string& values, const std::optional<Tensor>& bias,
                                   std::optional<int64_t> sparse_tokens,
                                   std::optional<int64_t> few_tokens) {
  check_sparse_tokens(sparse_tokens, few_tokens);
  check_rounded(values, x.size(x.dim() - 1));
  const std::optional<Tensor> scales(scales_);
  const BitmapUnits units{lines, offsets, scales};
  return product(x, units, rows, weight_dtype, bias,
                 [&](const LinearInputs& inputs, const Gpu& gpu, Tensor& y) {
                   const Operands operands = Operands::kRounded;
                   const auto choose = [&] {
                     return tiled_bitmap::choose_kernel(rows, inputs.in_features, inputs.tokens,
                                                        gpu, operands, {sparse_tokens, few_tokens});
                   };
                   const Kernel kernel =
                       chosen_kernel("tiled_bitmap", {Kernel::kFew, Kernel::kMany}, true, choose);
                   if (kernel == Kernel::kMany) {
                     wgmma_product(inputs, units, operands, gpu, y);
                   } else if (kernel == Kernel::kUnpacked) {
                     unpacked_rounded_product(inputs, units, gpu, y);
                   } else {
                     sparse_product(inputs, units, operands, gpu, y);
                   }
                 });
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_bitmap_linear", TORCH_BOX(&tiled_bitmap_linear));
  m.impl("tiled_bitmap_linear_rounded", TORCH_BOX(&tiled_bitmap_linear_rounded));
}

}  // namespace
}  // namespace flashsparse
