// SPDX-License-Identifier: Apache-2.0
// sparse_24 with W8A8: x is quantized with a scale for each token, by a kernel of its own; on
// Hopper the product starts before that one has ended (PDL).
#include <optional>
#include <string>
#include <vector>

#include "bindings/sparse_24_cuda.h"
#include "cuda/mma_units/quantise_x.h"
#include "cuda/sparse_24/kernel_choice.h"

namespace flashsparse {
namespace {

// The weight's tensors, if x can be quantized to its type.
Units codes_of(const Tensor& units, const std::optional<Tensor>& scales,
               const std::string& values) {
  FS_CHECK(values == "fp8_e4m3" || values == "int8",
           "activations are rounded to fp8_e4m3 or int8, not ", values,
           ". Remedy: sparse_24_linear, which multiplies 16-bit ones");
  return Units(units, scales, values, 0);
}

// Quantized x, rows padded to a multiple of 32 columns, and scales of tokens. `bytes` of an
// element: 1, or 2 for 16-bit floats.
struct RoundedX {
  Tensor codes, scales;

  RoundedX(const LinearInputs& inputs, ValueType type, int bytes, const Gpu& gpu)
      : codes(allocate_like(
            inputs.x, {inputs.tokens, mma_units::quantised_stride(inputs.in_features) * bytes / 2},
            ScalarType::Short)),
        scales(allocate_like(inputs.x, {inputs.tokens}, ScalarType::Float)) {
    const Tensor x = aligned_rows(inputs.x, 8);
    STD_CUDA_CHECK(cuda::sparse_24_quantise_x(bits(x), row_length(x), inputs.tokens, type,
                                              bytes == 2, x.scalar_type() == ScalarType::BFloat16,
                                              gpu.has_dependent_launch(), mutable_bits(codes),
                                              scales.mutable_data_ptr<float>(), current_stream(x)));
  }
};

void check_int8_cols(int64_t rows, int64_t cols, ValueType type) {
  FS_CHECK(type != ValueType::kInt8 || cols <= sparse_24::kMostInt8Cols, "a [", rows, ", ", cols,
           "] weight of int8 is too wide for int32 sums, which have room for ",
           sparse_24::kMostInt8Cols, " columns. Remedy: activations=native");
}

void wgmma_rounded_product(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                           Tensor& y) {
  const auto plan = wgmma_launch(inputs, packed, gpu, 1);
  const RoundedX x(inputs, packed.layout.type, 1, gpu);
  const int64_t width = row_length(x.codes);
  const TiledMatrix map{bits(x.codes), inputs.tokens, width, width, plan.copied_tokens()};
  // x was quantized by a kernel that signals launch_dependents.
  launch_wgmma(inputs, packed, plan, map, x.scales.const_data_ptr<float>(), true, y);
}

void mma_rounded_product(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                         Tensor& y) {
  const int bytes = sparse_24::few_x_bytes(packed.layout, gpu);
  const RoundedX x(inputs, packed.layout.type, bytes, gpu);
  const float* const scales = x.scales.const_data_ptr<float>();
  launch_mma(inputs, packed, gpu, {bits(x.codes), row_length(x.codes), scales, bytes, true}, y);
}

// On Hopper by wgmma, except for few_tokens if the caller gives them; elsewhere by mma, in as many
// launches as needed.
Tensor sparse_24_linear_rounded(const Tensor& x, const Tensor& units, const Tensor& scales,
                                int64_t rows, ScalarType weight_dtype, const std::string& values,
                                const std::optional<Tensor>& bias,
                                std::optional<int64_t> few_tokens) {
  check_sparse_tokens(std::nullopt, few_tokens);
  check_weight_dtype(weight_dtype);
  const std::optional<Tensor> row_scales(scales);
  const Units packed = codes_of(units, row_scales, values);
  const LinearInputs inputs(x, rows, bias, units, "units");
  packed.check(rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  check_int8_cols(rows, inputs.in_features, packed.layout.type);
  const torch::stable::accelerator::DeviceGuard guard(units.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(units);
  const bool has_mma = packed.layout.type == ValueType::kInt8 || gpu.has_fp8_mma();
  FS_CHECK(gpu.has_wgmma() || has_mma,
           "activations of fp8_e4m3 need compute capability 8.9, 9.0 or ",
           "12.x. Remedy: sparse_24_linear, which multiplies 16-bit ones");
  const Kernel kernel = chosen_kernel("sparse_24", {Kernel::kFew, Kernel::kMany}, true, [&] {
    return sparse_24::choose_kernel(rows, inputs.in_features, inputs.tokens, gpu, packed.layout, 1,
                                    {{}, few_tokens});
  });
  if (kernel == Kernel::kMany) {
    wgmma_rounded_product(inputs, packed, gpu, y);
  } else {
    mma_rounded_product(inputs, packed, gpu, y);
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("sparse_24_linear_rounded", TORCH_BOX(&sparse_24_linear_rounded));
}

}  // namespace
}  // namespace flashsparse
