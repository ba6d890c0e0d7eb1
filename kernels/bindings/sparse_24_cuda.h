// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA ops of sparse_24.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/sparse_24.h"
#include "cuda/sparse_24/sparse_24.h"

namespace flashsparse {

// A weight's tensors, and their layout.
struct Units {
  const Tensor& units;
  const std::optional<Tensor>& scales;  // of rows
  const sparse_24::UnitLayout layout;

  Units(const Tensor& units_, const std::optional<Tensor>& scales_, const std::string& values,
        int64_t group)
      : units(units_), scales(scales_), layout(sparse_24_layout(values, group)) {
    check_on_cuda(units, "units");
  }

  void check(int64_t out, int64_t in) const { check_sparse_24(units, scales, out, in, layout); }
  const float* scale_data() const { return scales ? scales->const_data_ptr<float>() : nullptr; }
};

// x for the decode kernel: 16-bit floats, or quantized to 8 bits with scales of tokens.
struct FewX {
  const uint16_t* bits;
  int64_t stride;  // from one token to the next, in 16 bits
  const float* scales;
  int bytes;  // of an element: 2, or 1 if quantized
};

// Fills y by mma.sp, with one launch for each max_tokens tokens: with the plan `given` or each
// slab's own.
void launch_mma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                const std::optional<sparse_24::LinearPlan>& given, const FewX& x, Tensor& y);

// Fills y by wgmma.sp in one launch; x_scales of tokens if x is quantized.
void launch_wgmma(const LinearInputs& inputs, const Units& packed, const Gpu& gpu,
                  const sparse_24::WgmmaPlan& plan, const TiledMatrix& x, const float* x_scales,
                  Tensor& y);

// For benchmarks: a sparse kernel with a given plan, which make_plan makes from `count` numbers,
// and with which `product` fills y.
template <class MakePlan, class Product>
Tensor planned(const Tensor& x, const Units& packed, int64_t rows, ScalarType weight_dtype,
               const std::optional<Tensor>& bias, const std::vector<int64_t>& numbers, size_t count,
               const MakePlan& make_plan, const Product& product) {
  check_weight_dtype(weight_dtype);
  const LinearInputs inputs(x, rows, bias, packed.units, "units");
  packed.check(rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  FS_CHECK(numbers.size() == count, "a plan has ", count, " numbers, not ", numbers.size());
  for (const int64_t number : numbers) {
    FS_CHECK(number >= 0 && number <= 1 << 20, "a plan has no number like ", number);
  }
  const auto plan = make_plan([&](int i) { return static_cast<int>(numbers[i]); });
  const torch::stable::accelerator::DeviceGuard guard(packed.units.get_device_index());
  const Gpu gpu = gpu_of(packed.units);
  const char* const rule = plan.broken_rule(rows, inputs.in_features, inputs.tokens, gpu);
  FS_CHECK(!rule, "no such plan for ", inputs.tokens, " tokens of a [", rows, ", ",
           inputs.in_features, "] weight: ", rule);
  Tensor y = inputs.new_y();
  product(inputs, packed, gpu, plan, y);
  return y;
}

}  // namespace flashsparse
