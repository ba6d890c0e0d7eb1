// SPDX-License-Identifier: Apache-2.0
// nm_gather for many tokens on Hopper: x is transposed, its kept columns are packed, and wgmma
// multiplies them. Nothing synchronizes.
#include <optional>

#include "bindings/nm_gather_cuda.h"

namespace flashsparse {

using nm_gather::Layout;
using nm_gather::PackedPlan;
using torch::stable::accelerator::DeviceGuard;

void packed_product(const LinearInputs& inputs, const nm_gather::Stored& weight,
                    const Layout& layout, const Gpu& gpu, std::optional<PackedPlan> given,
                    Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const bool bfloat16 = inputs.x.scalar_type() == ScalarType::BFloat16;
  for_each_x_tiles(inputs, layout, [&](const Tensor& x_tiles, int64_t begin, int64_t tokens) {
    const PackedPlan plan =
        given ? *given : nm_gather::plan_packed(layout, rows, cols, tokens, gpu);
    const char* const wrong = plan.complaint(layout, rows, cols, tokens, gpu);
    FS_CHECK(wrong == nullptr, "no plan for this product: ", wrong);
    STD_CUDA_CHECK(
        cuda::nm_gather_packed(layout, product_of(inputs, weight, x_tiles, begin, tokens, y), plan,
                               gpu.multiprocessors, bfloat16, current_stream(x_tiles)));
  });
}

namespace {

Tensor nm_gather_linear_packed_planned(const Tensor& x, const Tensor& values, const Tensor& index,
                                       int64_t rows, int64_t n, int64_t m, int64_t vector_length,
                                       ScalarType weight_dtype, const std::optional<Tensor>& bias,
                                       int64_t shape, int64_t band) {
  check_weight_dtype(weight_dtype);
  const Layout layout = check_gather_pattern(n, m, vector_length);
  const LinearInputs inputs(x, rows, bias, values, "gather_values");
  const int64_t cols = inputs.in_features;
  const GatherTensors weight{values, index, std::nullopt};
  check_readable(weight, rows, cols, layout);
  FS_CHECK(x.scalar_type() == weight_dtype,
           "the packed kernel needs x in the dtype of the weight: use nm_gather_linear");
  const Gpu gpu = gpu_of(values);
  const char* const unfit = nm_gather::packed_complaint(layout, cols, gpu);
  FS_CHECK(unfit == nullptr, unfit);
  const DeviceGuard guard(values.get_device_index());
  Tensor y = inputs.new_y();
  const PackedPlan plan{static_cast<int>(shape), static_cast<int>(band)};
  packed_product(inputs, stored(weight, layout, layout.pairs(cols)), layout, gpu, plan, y);
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_gather_linear_packed_planned", TORCH_BOX(&nm_gather_linear_packed_planned));
}

}  // namespace
}  // namespace flashsparse
