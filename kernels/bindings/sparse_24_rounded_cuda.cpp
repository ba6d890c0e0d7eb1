// SPDX-License-Identifier: Apache-2.0
// sparse_24 with codes of 8 bits on both sides, on Hopper: x becomes codes with a scale for each
// token, by a kernel of its own that the product does not wait for to begin.
#include <optional>
#include <string>
#include <vector>

#include "bindings/sparse_24_cuda.h"
#include "cuda/sparse_24/quantise_x.h"

namespace flashsparse {
namespace {

using sparse_24::WgmmaPlan;

// The weight's codes: those that x is rounded to.
Units codes_of(const Tensor& units, const std::optional<Tensor>& scales,
               const std::string& values) {
  FS_CHECK(values == "fp8_e4m3" || values == "int8",
           "activations are rounded to fp8_e4m3 or int8, not ", values,
           ". Remedy: sparse_24_linear, which multiplies 16-bit ones");
  return Units(units, scales, values, 0);
}

void rounded_product(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                     const std::optional<WgmmaPlan>& given, Tensor& y) {
  FS_CHECK(gpu.hopper, "activations of 8 bits need compute capability 9.0. Remedy: ",
           "sparse_24_linear, which multiplies 16-bit ones");
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  FS_CHECK(packed.layout.type != ValueType::kInt8 || cols <= sparse_24::kMostInt8Cols, "a [", rows,
           ", ", cols, "] weight of int8 is too wide for int32 sums, which have room ", "for ",
           sparse_24::kMostInt8Cols, " columns. Remedy: activations=native");
  const WgmmaPlan plan =
      given ? *given : sparse_24::plan_wgmma(rows, cols, tokens, gpu, packed.layout, 1);
  const Tensor x = aligned_rows(inputs.x, 8);
  const int64_t stride = sparse_24::quantised_stride(cols);
  Tensor codes = allocate_like(x, {tokens, stride / 2}, ScalarType::Short);
  Tensor scales = allocate_like(x, {tokens}, ScalarType::Float);
  const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
  STD_CUDA_CHECK(cuda::sparse_24_quantise_x(bits(x), row_length(x), tokens, packed.layout.type,
                                            bfloat16, mutable_bits(codes),
                                            scales.mutable_data_ptr<float>(), current_stream(x)));
  const TiledMatrix map{bits(codes), tokens, stride / 2, stride / 2, plan.copied_tokens()};
  launch_wgmma(inputs, packed, gpu, plan, map, scales.const_data_ptr<float>(), y);
}

Tensor sparse_24_linear_rounded(const Tensor& x, const Tensor& units, const Tensor& scales,
                                int64_t rows, ScalarType weight_dtype, const std::string& values,
                                const std::optional<Tensor>& bias) {
  check_weight_dtype(weight_dtype);
  const std::optional<Tensor> row_scales(scales);
  const Units packed = codes_of(units, row_scales, values);
  const LinearInputs inputs(x, rows, bias, units, "units");
  packed.check(rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  const torch::stable::accelerator::DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens > 0) rounded_product(inputs, packed, gpu_of(units), std::nullopt, y);
  return y;
}

Tensor sparse_24_linear_rounded_planned(const Tensor& x, const Tensor& units, const Tensor& scales,
                                        int64_t rows, ScalarType weight_dtype,
                                        const std::string& values,
                                        const std::optional<Tensor>& bias,
                                        const std::vector<int64_t>& numbers) {
  const std::optional<Tensor> row_scales(scales);
  const Units packed = codes_of(units, row_scales, values);
  const auto make_plan = [&](const auto& number) {
    return WgmmaPlan{number(0), number(1), number(2), number(3), number(4), packed.layout, 1};
  };
  return planned(x, packed, rows, weight_dtype, bias, numbers, 5, make_plan, rounded_product);
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("sparse_24_linear_rounded", TORCH_BOX(&sparse_24_linear_rounded));
  m.impl("sparse_24_linear_rounded_planned", TORCH_BOX(&sparse_24_linear_rounded_planned));
}

}  // namespace
}  // namespace flashsparse
