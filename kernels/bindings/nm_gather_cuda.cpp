// SPDX-License-Identifier: Apache-2.0
// The ops of nm_gather on CUDA: argument checks, allocation, launches on the current stream. They
// do not synchronize.
#include "bindings/nm_gather_cuda.h"

#include <algorithm>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "bindings/linear_cuda.h"
#include "bindings/nm_gather.h"
#include "bindings/override.h"
#include "bindings/unpacked_product_cuda.h"
#include "cuda/nm_gather/kernel_choice.h"
#include "cuda/nm_gather/nm_gather.h"

namespace flashsparse {
namespace {

using nm_gather::Layout;
using nm_gather::Stored;
using torch::stable::accelerator::DeviceGuard;

// Unpacks rows [first, first + rows) of a weight with `in` columns; first is a multiple of the rows
// that share an index.
Tensor unpack_rows(const GatherTensors& packed, const Layout& layout, int64_t first, int64_t rows,
                   int64_t in, ScalarType dtype) {
  Tensor weight = allocate_like(packed.values, {rows, in}, dtype);
  const int64_t group = first / layout.unit_rows / layout.group_units;
  STD_CUDA_CHECK(cuda::nm_gather_unpack(layout, stored(packed, layout, layout.pairs(in), group),
                                        rows, in, dtype == ScalarType::BFloat16,
                                        mutable_bits(weight), current_stream(packed.values)));
  return weight;
}

Tensor nm_gather_unpack(const Tensor& values, const Tensor& index, int64_t out, int64_t in,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType dtype,
                        const std::optional<Tensor>& row_scales, const std::string& value_type,
                        int64_t group) {
  check_weight_dtype(dtype);
  const Layout layout = check_gather_pattern(n, m, vector_length, value_type, group);
  const GatherTensors weight{values, index, row_scales};
  check_readable(weight, out, in, layout);
  const DeviceGuard guard(values.get_device_index());
  return unpack_rows(weight, layout, 0, out, in, dtype);
}

// One launch for each slab of tokens.
void sparse_product(const LinearInputs& inputs, const Stored& weight, const Layout& layout,
                    const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const Tensor x = aligned_rows(inputs.x, linear::kTileCols);
  const cudaStream_t stream = current_stream(x);
  const bool bfloat16 = x.scalar_type() == ScalarType::BFloat16;
  const bool early = begins_early(inputs.x) && gpu.has_dependent_launch();
  const int64_t most = nm_gather::max_tokens(layout, gpu);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const auto plan = launch_of(
        "nm_gather", rows, cols, tokens, nm_gather::Plan{},
        [&] { return nm_gather::plan_linear(layout, rows, cols, tokens, gpu); },
        [&](const auto& own) { return own.complaint(layout, rows, cols, tokens, gpu); });
    Partials partials(x, plan.partial_floats(layout, rows));
    cuda::NmGatherProduct product{};
    product.weight = weight;
    product.x = bits(x) + begin * row_length(x);
    product.x_stride = static_cast<int>(row_length(x));
    product.x_scales = inputs.x_scales ? inputs.x_scales + begin : nullptr;
    product.bias = inputs.bias ? bits(*inputs.bias) : nullptr;
    product.y = mutable_bits(y) + begin * rows;
    product.partials = partials.data();
    product.rows = rows;
    product.cols = cols;
    product.tokens = static_cast<int>(tokens);
    if (plan.splits > 1) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.row_blocks(layout, rows), &product.arrivals));
    }
    STD_CUDA_CHECK(cuda::nm_gather_linear(layout, product, plan, bfloat16, early, stream));
  }
}

// A transposed copy of x and a launch that reads it, for as many tokens at a time as the workspace
// holds.
void tiles_product(const LinearInputs& inputs, const Stored& weight, const Layout& layout,
                   const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const bool bfloat16 = inputs.x.scalar_type() == ScalarType::BFloat16;
  for_each_x_tiles(inputs, layout, [&](const Tensor& x_tiles, int64_t begin, int64_t tokens) {
    const cudaStream_t stream = current_stream(x_tiles);
    const auto plan = launch_of(
        "nm_gather", rows, cols, tokens, nm_gather::TilesPlan{},
        [&] { return nm_gather::plan_tiles(layout, rows, cols, tokens, gpu); },
        [&](const auto& own) { return own.complaint(layout, rows, cols, tokens, gpu); });
    Partials partials(x_tiles, plan.partial_floats(rows, tokens));
    cuda::NmGatherTiles product = product_of(inputs, weight, x_tiles, begin, tokens, y);
    product.partials = partials.data();
    if (plan.arrivals(rows, tokens) > 0) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.arrivals(rows, tokens), &product.arrivals));
    }
    STD_CUDA_CHECK(
        cuda::nm_gather_tiles(layout, product, plan, bfloat16, gpu.has_dependent_launch(), stream));
  });
}

// The same by wgmma on Hopper, which multiplies packed x: the columns that a row tile keeps. For
// weights and GPUs of which packed_complaint() says nothing.
void packed_product(const LinearInputs& inputs, const Stored& weight, const Layout& layout,
                    const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const bool bfloat16 = inputs.x.scalar_type() == ScalarType::BFloat16;
  for_each_x_tiles(inputs, layout, [&](const Tensor& x_tiles, int64_t begin, int64_t tokens) {
    const auto plan = launch_of(
        "nm_gather", rows, cols, tokens, nm_gather::PackedPlan{},
        [&] { return nm_gather::plan_packed(layout, rows, cols, tokens, gpu); },
        [&](const auto& own) { return own.complaint(layout, rows, cols, tokens, gpu); });
    STD_CUDA_CHECK(
        cuda::nm_gather_packed(layout, product_of(inputs, weight, x_tiles, begin, tokens, y), plan,
                               gpu.multiprocessors, bfloat16, current_stream(x_tiles)));
  });
}

Tensor nm_gather_linear(const Tensor& x, const Tensor& values, const Tensor& index, int64_t rows,
                        int64_t n, int64_t m, int64_t vector_length, ScalarType weight_dtype,
                        const std::optional<Tensor>& bias, std::optional<int64_t> sparse_tokens,
                        const std::optional<Tensor>& row_scales, const std::string& value_type,
                        int64_t group, const std::optional<Tensor>& x_scales) {
  check_sparse_tokens(sparse_tokens);
  check_weight_dtype(weight_dtype);
  const Layout layout = check_gather_pattern(n, m, vector_length, value_type, group);
  LinearInputs inputs(x, rows, bias, values, "gather_values");
  inputs.take_x_scales(x_scales, weight_dtype, value_type);
  const int64_t cols = inputs.in_features;
  const GatherTensors weight{values, index, row_scales};
  check_readable(weight, rows, cols, layout);
  const Stored own = stored(weight, layout, layout.pairs(cols));
  const DeviceGuard guard(values.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const Gpu gpu = gpu_of(values);
  const Kernel kernel =
      chosen_kernel("nm_gather", {Kernel::kFew, Kernel::kMany, Kernel::kPacked},
                    x.scalar_type() == weight_dtype, [&] {
                      return nm_gather::choose_kernel(layout, rows, cols, inputs.tokens, gpu,
                                                      {sparse_tokens, {}});
                    });
  if (kernel == Kernel::kFew) {
    sparse_product(inputs, own, layout, gpu, y);
  } else if (kernel == Kernel::kMany) {
    tiles_product(inputs, own, layout, gpu, y);
  } else if (kernel == Kernel::kPacked) {
    packed_product(inputs, own, layout, gpu, y);
  } else {
    unpacked_product_cuda(inputs, weight_dtype, vector_length, y,
                          [&](int64_t first, int64_t count) {
                            return unpack_rows(weight, layout, first, count, cols, weight_dtype);
                          });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_gather_unpack", TORCH_BOX(&nm_gather_unpack));
  m.impl("nm_gather_linear", TORCH_BOX(&nm_gather_linear));
}

}  // namespace
}  // namespace flashsparse
