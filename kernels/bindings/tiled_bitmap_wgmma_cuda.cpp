// SPDX-License-Identifier: Apache-2.0
#include "bindings/tiled_bitmap_wgmma_cuda.h"

#include <vector>

#include "bindings/tiled_bitmap_cuda.h"
#include "cuda/shared/arrivals.h"
#include "cuda/tiled_bitmap/wgmma.h"

namespace flashsparse {

using tiled_bitmap::WgmmaPlan;

void wgmma_product(const LinearInputs& inputs, const Tensor& lines, const Tensor& offsets,
                   const Gpu& gpu, const std::optional<WgmmaPlan>& given, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features, tokens = inputs.tokens;
  const Tensor x = aligned_rows(inputs.x, 8);
  const cudaStream_t stream = current_stream(x);
  const WgmmaPlan plan =
      given ? *given : tiled_bitmap::plan_wgmma(rows, cols, tokens, lines.size(0), gpu);
  const char* const rule = plan.broken_rule(rows, cols, tokens, gpu);
  FS_CHECK(!rule, "no launch for ", tokens, " tokens of a [", rows, ", ", cols, "] weight: ", rule,
           ". Remedy: tiled_bitmap_linear with sparse_tokens=0, which unpacks it");
  Partials partials(x, plan.partial_floats(rows, tokens));
  tiled_bitmap::WgmmaArguments arguments{};
  arguments.units = words_of(lines);
  arguments.offsets = offsets.const_data_ptr<int32_t>();
  arguments.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
  arguments.y = mutable_bits(y);
  arguments.partials = partials.data();
  arguments.rows = static_cast<int>(rows);
  arguments.cols = static_cast<int>(cols);
  arguments.tokens = static_cast<int>(tokens);
  arguments.cut(plan);
  arguments.ring_lines = plan.ring_lines;
  if (plan.shares_tiles(rows, tokens)) {
    STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows, tokens), &arguments.arrivals));
  }
  const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
  const TiledMatrix map{bits(x), tokens, cols, row_length(x), plan.copied_tokens()};
  STD_CUDA_CHECK(cuda::tiled_bitmap_wgmma(arguments, map, plan, bfloat16, stream));
}

namespace {

// For benchmarks: the kernel with a given plan, or with its own if there is none.
Tensor tiled_bitmap_wgmma_planned(const Tensor& x, const Tensor& lines, const Tensor& offsets,
                                  int64_t rows, ScalarType weight_dtype,
                                  const std::optional<Tensor>& bias,
                                  const std::vector<int64_t>& numbers) {
  check_weight_dtype(weight_dtype);
  check_on_cuda(lines, "weight_packed");
  const LinearInputs inputs(x, rows, bias, lines, "weight_packed");
  check_readable_units(lines, offsets, rows, inputs.in_features);
  FS_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  FS_CHECK(numbers.empty() || numbers.size() == 6, "a plan has 6 numbers or none, not ",
           numbers.size());
  std::optional<WgmmaPlan> plan;
  if (!numbers.empty()) {
    int own[6];
    for (int i = 0; i < 6; ++i) {
      FS_CHECK(numbers[i] >= 0 && numbers[i] <= 1 << 20, "a plan has no number like ", numbers[i]);
      own[i] = static_cast<int>(numbers[i]);
    }
    plan = WgmmaPlan{own[0], own[1], own[2], own[3], own[4], own[5]};
  }
  const torch::stable::accelerator::DeviceGuard guard(lines.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens > 0) wgmma_product(inputs, lines, offsets, gpu_of(lines), plan, y);
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_bitmap_wgmma_planned", TORCH_BOX(&tiled_bitmap_wgmma_planned));
}

}  // namespace
}  // namespace flashsparse
