// SPDX-License-Identifier: Apache-2.0
// The product of nm_spmm on CUDA: argument checks, allocation, launches on the current stream. It
// does not synchronize. Contents are validated by the format's `check`, or follow from nm_vector's.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/nm_spmm.h"
#include "bindings/override.h"
#include "bindings/unpacked_product.h"
#include "cuda/nm_spmm/nm_spmm.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using nm_spmm::Layout;
using torch::stable::accelerator::DeviceGuard;

void check_part(const Tensor& tensor, const char* name, const Tensor& values, ScalarType dtype,
                std::initializer_list<int64_t> sizes) {
  check_tensor(tensor, name, dtype, static_cast<int64_t>(sizes.size()));
  check_beside(tensor, name, values, "spmm_values");
  int64_t dim = 0;
  for (const int64_t size : sizes) {
    FS_CHECK(tensor.size(dim) == size, name, " must have ", size, " elements in dimension ", dim,
             ", has ", tensor.size(dim));
    ++dim;
  }
  FS_CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0, name,
           " must start on 16 bytes: pass a tensor of its own and not a slice, e.g. ", name,
           ".clone()");
}

// A weight's tensors.
struct SpmmTensors {
  const Tensor &values, &index, &columns, &packed;

  void check(const Layout& layout, int64_t rows, int64_t cols) const {
    check_on_cuda(values, "spmm_values");
    check_nm_shape(rows, cols);
    const int64_t blocks = layout.blocks(rows), panels = layout.panels(cols);
    constexpr int64_t kUnits = nm_spmm::kBlockRows / nm_spmm::kUnitRows;
    check_part(values, "spmm_values", values, ScalarType::Int,
               {blocks, panels, kUnits, layout.entries, nm_spmm::kUnitRows});
    check_part(index, "spmm_index", values, ScalarType::Byte,
               {blocks, panels, layout.groups(), layout.entries});
    check_part(columns, "spmm_columns", values, ScalarType::Byte,
               {blocks, panels, layout.capacity});
    check_part(packed, "spmm_packed", values, ScalarType::Byte,
               {blocks, panels, layout.groups(), layout.entries});
  }
};

// The dense weight, by the op nm_spmm_unpack, which is made of torch's own.
Tensor unpacked(const SpmmTensors& weight, int64_t rows, int64_t cols, int64_t n, int64_t m,
                int64_t vector_length, ScalarType dtype) {
  using torch::stable::detail::from;
  std::array<StableIValue, 10> stack{from(weight.values),
                                     from(weight.index),
                                     from(weight.columns),
                                     from(weight.packed),
                                     from(rows),
                                     from(cols),
                                     from(n),
                                     from(m),
                                     from(vector_length),
                                     from(dtype)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("flashsparse::nm_spmm_unpack", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Fills y. One launch for each slab of tokens, so that the size of x^T is bounded.
void sparse_product(const LinearInputs& inputs, const SpmmTensors& weight, const Layout& layout,
                    const Gpu& gpu, Tensor& y) {
  const int64_t rows = inputs.out_features, cols = inputs.in_features;
  const cudaStream_t stream = current_stream(weight.values);
  const int64_t most = nm_spmm::max_tokens(layout, cols);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const auto plan = launch_of(
        "nm_spmm", rows, cols, tokens, nm_spmm::Plan{},
        [&] { return nm_spmm::plan_linear(layout, rows, cols, tokens, gpu); },
        [&](const auto& own) { return own.complaint(layout, rows, cols, tokens, gpu); });
    Tensor xt = allocate_like(inputs.x, {plan.xt_floats(layout, cols, tokens)});
    Partials partials(inputs.x, plan.partial_floats(rows, tokens));
    cuda::NmSpmmProduct product{};
    product.values = weight.values.const_data_ptr();
    product.index = weight.index.const_data_ptr();
    product.columns = weight.columns.const_data_ptr();
    product.packed = weight.packed.const_data_ptr();
    product.x = inputs.x.const_data_ptr<float>() + begin * cols;
    product.bias = inputs.bias ? inputs.bias->const_data_ptr<float>() : nullptr;
    product.y = y.mutable_data_ptr<float>() + begin * rows;
    product.xt = xt.mutable_data_ptr<float>();
    product.partials = partials.data();
    product.rows = rows;
    product.cols = cols;
    product.tokens = tokens;
    if (plan.splits > 1) {
      STD_CUDA_CHECK(cuda::arrivals(stream, plan.tiles(rows, tokens), &product.arrivals));
    }
    STD_CUDA_CHECK(cuda::nm_spmm_linear(layout, product, plan, stream));
  }
}

Tensor nm_spmm_linear(const Tensor& x, const Tensor& values, const Tensor& index,
                      const Tensor& columns, const Tensor& packed, int64_t rows, int64_t n,
                      int64_t m, int64_t vector_length, ScalarType weight_dtype,
                      const std::optional<Tensor>& bias, std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  FS_CHECK(weight_dtype == ScalarType::Float, "nm_spmm holds float32");
  const Layout layout = check_spmm_pattern(n, m, vector_length);
  const LinearInputs inputs(x, rows, bias, values, "spmm_values");
  const int64_t cols = inputs.in_features;
  const SpmmTensors weight{values, index, columns, packed};
  weight.check(layout, rows, cols);
  const DeviceGuard guard(values.get_device_index());
  Tensor y = inputs.new_y();
  if (inputs.tokens == 0) return y;
  const bool is_few = inputs.tokens <= sparse_tokens.value_or(INT64_MAX);
  const Kernel kernel = chosen_kernel("nm_spmm", {Kernel::kSparse}, x.scalar_type() == weight_dtype,
                                      [&] { return is_few ? Kernel::kSparse : Kernel::kUnpacked; });
  if (kernel == Kernel::kSparse) {
    sparse_product(inputs, weight, layout, gpu_of(values), y);
  } else {
    unpacked_product(inputs, weight_dtype, rows, y, [&](int64_t, int64_t) {
      return unpacked(weight, rows, cols, n, m, vector_length, weight_dtype);
    });
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_spmm_linear", TORCH_BOX(&nm_spmm_linear));
}

}  // namespace
}  // namespace flashsparse
