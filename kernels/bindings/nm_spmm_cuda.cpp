// SPDX-License-Identifier: Apache-2.0
// The product of nm_spmm on CUDA: argument checks, allocation, launches on the current stream. It
// does not synchronize. Contents are validated by the format's `check`, or follow from nm_vector's.
#include <algorithm>
#include <initializer_list>
#include <optional>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "bindings/nm_vector.h"
#include "cuda/nm_spmm/nm_spmm.h"
#include "cuda/shared/arrivals.h"

namespace flashsparse {
namespace {

using nm_spmm::Layout;
using nm_spmm::Plan;
using torch::stable::accelerator::DeviceGuard;

Layout check_spmm_pattern(int64_t n, int64_t m, int64_t vector_length) {
  check_pattern(n, m, vector_length);
  const Layout layout =
      nm_spmm::layout_of(static_cast<int>(n), static_cast<int>(m), static_cast<int>(vector_length));
  FS_CHECK(layout.columns > 0, "nm_spmm cannot hold ", n, ":", m, " in vectors of ", vector_length,
           " rows: pack to nm_vector");
  return layout;
}

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

Tensor nm_spmm_linear_planned(const Tensor& x, const Tensor& values, const Tensor& index,
                              const Tensor& columns, const Tensor& packed, int64_t rows, int64_t n,
                              int64_t m, int64_t vector_length, ScalarType weight_dtype,
                              const std::optional<Tensor>& bias, int64_t kernel, int64_t splits) {
  const Layout layout = check_spmm_pattern(n, m, vector_length);
  const LinearInputs inputs(x, rows, bias, values, "spmm_values");
  const int64_t cols = inputs.in_features;
  check_on_cuda(values, "spmm_values");
  check_nm_shape(rows, cols);
  FS_CHECK(x.scalar_type() == ScalarType::Float && weight_dtype == ScalarType::Float,
           "nm_spmm multiplies float32 by float32");
  const int64_t blocks = layout.blocks(rows), panels = layout.panels(cols);
  constexpr int64_t kUnits = nm_spmm::kBlockRows / nm_spmm::kUnitRows;
  check_part(values, "spmm_values", values, ScalarType::Int,
             {blocks, panels, kUnits, layout.entries, nm_spmm::kUnitRows});
  check_part(index, "spmm_index", values, ScalarType::Byte,
             {blocks, panels, layout.groups(), layout.entries});
  check_part(columns, "spmm_columns", values, ScalarType::Byte, {blocks, panels, layout.capacity});
  check_part(packed, "spmm_packed", values, ScalarType::Byte,
             {blocks, panels, layout.groups(), layout.entries});

  const DeviceGuard guard(values.get_device_index());
  const Gpu gpu = gpu_of(values);
  Tensor y = inputs.new_y();
  const cudaStream_t stream = current_stream(values);
  // One launch for each slab of tokens, so that the size of x^T is bounded.
  const int64_t most = nm_spmm::max_tokens(layout, cols);
  for (int64_t begin = 0; begin < inputs.tokens; begin += most) {
    const int64_t tokens = std::min(most, inputs.tokens - begin);
    const Plan plan = kernel < 0 ? nm_spmm::plan_linear(layout, rows, cols, tokens, gpu)
                                 : Plan{static_cast<int>(kernel), static_cast<int>(splits)};
    const char* const complaint = plan.complaint(layout, rows, cols, tokens, gpu);
    FS_CHECK(complaint == nullptr, "no plan for a [", rows, ", ", cols, "] weight and ", tokens,
             " tokens: ", complaint ? complaint : "");
    Tensor xt = allocate_like(values, {plan.xt_floats(layout, cols, tokens)}, ScalarType::Float);
    Partials partials(values, plan.partial_floats(rows, tokens));
    cuda::NmSpmmProduct product{};
    product.values = values.const_data_ptr();
    product.index = index.const_data_ptr();
    product.columns = columns.const_data_ptr();
    product.packed = packed.const_data_ptr();
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
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("nm_spmm_linear_planned", TORCH_BOX(&nm_spmm_linear_planned));
}

}  // namespace
}  // namespace flashsparse
