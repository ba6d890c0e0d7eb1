// SPDX-License-Identifier: Apache-2.0
// tiled_csl_linear on CUDA: the sparse kernel for few tokens, unpacking and the dense library for
// many, where the product is bound by arithmetic and the weight's bytes no longer count. How many
// is the caller's to say, or else a constant of the GPU: known on the host, so that a CUDA graph
// can hold the decision.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "bindings/cuda_checks.h"
#include "bindings/packed_checks.h"
#include "cuda/arrivals.h"
#include "cuda/linear_plan.h"
#include "cuda/tiled_csl.h"

namespace flashsparse {
namespace {

using tiled_csl::LinearPlan;

// The dense product goes by panels of rows, so that no layer needs more than this beside itself.
constexpr int64_t kWorkspaceBytes = 256 << 20;

struct Problem {
  Tensor x;  // [tokens, cols], contiguous
  Tensor words, offsets;
  std::optional<Tensor> bias;  // [rows]
  int64_t tokens, rows, cols;
  ScalarType weight_dtype;
  Tensor y;  // [tokens, rows]
};

bool is_16_bit(ScalarType dtype) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

Problem make_problem(const Tensor& x, const Tensor& words, const Tensor& offsets, int64_t rows,
                     ScalarType weight_dtype, const std::optional<Tensor>& bias) {
  STD_TORCH_CHECK(is_16_bit(weight_dtype), "packed weights are float16 or bfloat16");
  STD_TORCH_CHECK(x.dim() >= 1, "x must be [..., in_features]");
  STD_TORCH_CHECK(is_16_bit(x.scalar_type()) || x.scalar_type() == ScalarType::Float,
                  "x must be float32, float16 or bfloat16");
  const int64_t cols = x.size(x.dim() - 1);
  check_tiled_csl(words, offsets, rows, cols);
  STD_TORCH_CHECK(x.is_cuda() && x.get_device_index() == words.get_device_index(),
                  "x must be on the CUDA device of weight_packed");
  std::optional<Tensor> same_bias;
  if (bias) {
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == rows, "bias must be [", rows, "]");
    STD_TORCH_CHECK(bias->is_cuda() && bias->get_device_index() == words.get_device_index(),
                    "bias must be on the CUDA device of weight_packed");
    same_bias = torch::stable::contiguous(torch::stable::to(*bias, x.scalar_type()));
  }
  const int64_t tokens = x.numel() / cols;
  return {torch::stable::view(torch::stable::contiguous(x), {tokens, cols}),
          words,
          offsets,
          same_bias,
          tokens,
          rows,
          cols,
          weight_dtype,
          torch::stable::new_empty(x, {tokens, rows})};
}

tiled_csl::Gpu gpu_of(const Tensor& tensor) {
  const int device = tensor.get_device_index();
  int multiprocessors = 0, major = 0;
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return {multiprocessors, major == 9};
}

const uint16_t* bits(const Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); }

// The kernel reads x 16 bytes at a time, and whole tiles: rows are a multiple of 64 long, with
// zeros at the end.
Tensor aligned_rows(const Tensor& x, int64_t cols) {
  constexpr int64_t kCols = tiled_csl::kTileCols;
  if (cols % kCols != 0) return torch::stable::pad(x, {0, kCols - cols % kCols});
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0) return torch::stable::clone(x);
  return x;
}

// `plan` for every slab of tokens, or each slab's own.
void sparse_product(Problem& problem, const LinearPlan* plan) {
  const Tensor x = aligned_rows(problem.x, problem.cols);
  const cudaStream_t stream = current_stream(problem.words);
  const tiled_csl::Gpu gpu = gpu_of(problem.words);
  const int64_t most = tiled_csl::max_linear_tokens(gpu);
  for (int64_t begin = 0; begin < problem.tokens; begin += most) {
    const int64_t tokens = std::min(most, problem.tokens - begin);
    const LinearPlan slab = plan ? *plan
                                 : tiled_csl::plan_linear(problem.rows, problem.cols, tokens,
                                                          problem.words.numel(), gpu);
    Tensor partials =
        torch::stable::new_empty(problem.words, {slab.partial_floats()}, ScalarType::Float);
    cuda::LinearCall call;
    call.words = static_cast<const uint32_t*>(problem.words.const_data_ptr());
    call.offsets = problem.offsets.const_data_ptr<int32_t>();
    call.rows = problem.rows;
    call.cols = problem.cols;
    call.tokens = tokens;
    call.x_stride = x.size(1);
    call.x = bits(x) + begin * call.x_stride;
    call.bias = problem.bias ? bits(*problem.bias) : nullptr;
    call.y = static_cast<uint16_t*>(problem.y.mutable_data_ptr()) + begin * problem.rows;
    call.bfloat16 = problem.weight_dtype == ScalarType::BFloat16;
    call.partials = partials.mutable_data_ptr<float>();
    STD_CUDA_CHECK(cuda::arrivals(stream, tiled_csl::tile_rows(problem.rows), &call.arrivals));
    STD_CUDA_CHECK(cuda::tiled_csl_linear(call, slab, stream));
  }
}

// y[:, rows] = x weight^T + bias by torch's own library, whatever its strides.
void dense_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                  Tensor& y) {
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(x), from(weight), from(bias), from(y)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  (void)torch::stable::detail::to<Tensor>(stack[0]);
}

// Where x and the weight differ in dtype both are widened to float32, and the result is rounded
// once, so that neither loses a bit.
void dense_product(Problem& problem) {
  const ScalarType dtype = problem.x.scalar_type();
  const ScalarType compute = dtype == problem.weight_dtype ? dtype : ScalarType::Float;
  const int64_t row_bytes =
      problem.cols * (dtype == compute ? sizeof(uint16_t) : sizeof(uint16_t) + sizeof(float));
  const int64_t tile_rows = tiled_csl::tile_rows(problem.rows);
  const int64_t panel =  // tile rows
      std::clamp<int64_t>(kWorkspaceBytes / (row_bytes * tiled_csl::kTileRows), 1, tile_rows);
  const Tensor x = torch::stable::to(problem.x, compute);
  std::optional<Tensor> bias;
  if (problem.bias) bias = torch::stable::to(*problem.bias, compute);

  Tensor y =
      dtype == compute ? problem.y : torch::stable::new_empty(x, {problem.tokens, problem.rows});
  for (int64_t tile_row = 0; tile_row < tile_rows; tile_row += panel) {
    const int64_t begin = tile_row * tiled_csl::kTileRows;
    const int64_t rows = std::min(panel * tiled_csl::kTileRows, problem.rows - begin);
    Tensor weight =
        torch::stable::new_empty(problem.words, {rows, problem.cols}, problem.weight_dtype);
    STD_CUDA_CHECK(cuda::tiled_csl_unpack(
        static_cast<const uint32_t*>(problem.words.const_data_ptr()), problem.words.numel(),
        problem.offsets.const_data_ptr<int32_t>() + tile_row * tiled_csl::tile_cols(problem.cols),
        rows, problem.cols, static_cast<uint16_t*>(weight.mutable_data_ptr()),
        current_stream(problem.words)));
    std::optional<Tensor> part_bias;
    if (bias) part_bias = torch::stable::narrow(*bias, 0, begin, rows);
    Tensor part = torch::stable::narrow(y, 1, begin, rows);
    dense_linear(x, torch::stable::to(weight, compute), part_bias, part);
  }
  if (dtype != compute) torch::stable::copy_(problem.y, y);
}

Tensor shaped(const Problem& problem, const Tensor& x) {
  std::vector<int64_t> shape;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
  shape.push_back(problem.rows);
  return torch::stable::view(problem.y, shape);
}

Tensor tiled_csl_linear(const Tensor& x, const Tensor& words, const Tensor& offsets, int64_t rows,
                        ScalarType weight_dtype, const std::optional<Tensor>& bias,
                        std::optional<int64_t> sparse_tokens) {
  check_sparse_tokens(sparse_tokens);
  Problem problem = make_problem(x, words, offsets, rows, weight_dtype, bias);
  const torch::stable::accelerator::DeviceGuard guard(words.get_device_index());
  const int64_t most = sparse_tokens.value_or(tiled_csl::max_sparse_tokens(gpu_of(words)));
  const int64_t tile_rows = tiled_csl::tile_rows(rows);
  const bool sparse = x.scalar_type() == weight_dtype && problem.tokens <= most &&
                      tile_rows <= cuda::kMaxArrivals &&
                      tile_rows * tiled_csl::tile_cols(problem.cols) <= tiled_csl::kMaxLinearTiles;
  if (problem.tokens > 0) sparse ? sparse_product(problem, nullptr) : dense_product(problem);
  return shaped(problem, x);
}

// For benchmarks: the sparse kernel by a plan of the caller's choice.
Tensor tiled_csl_linear_planned(const Tensor& x, const Tensor& words, const Tensor& offsets,
                                int64_t rows, ScalarType weight_dtype,
                                const std::optional<Tensor>& bias, int64_t shape, int64_t blocks) {
  Problem problem = make_problem(x, words, offsets, rows, weight_dtype, bias);
  STD_TORCH_CHECK(x.scalar_type() == weight_dtype, "x must have the dtype of the weight");
  STD_TORCH_CHECK(shape >= 0 && shape < tiled_csl::kLinearShapeCount, "shape must be below ",
                  tiled_csl::kLinearShapeCount);
  const tiled_csl::LinearShapeInfo& info = tiled_csl::kLinearShapes[shape];
  STD_TORCH_CHECK(problem.tokens >= 1 && problem.tokens <= info.tokens, "shape ", shape,
                  " is for 1 to ", info.tokens, " tokens");
  STD_TORCH_CHECK(!info.hopper || gpu_of(words).hopper, "shape ", shape, " is for Hopper GPUs");
  const int64_t tile_rows = tiled_csl::tile_rows(rows);
  const int64_t tiles = tile_rows * tiled_csl::tile_cols(problem.cols);
  STD_TORCH_CHECK(tiles <= tiled_csl::kMaxLinearTiles, "too many tiles");
  STD_TORCH_CHECK(blocks <= tiles && blocks * tiled_csl::kMaxPiece >= tiles,
                  "too few or too many blocks");
  STD_TORCH_CHECK(tile_rows <= cuda::kMaxArrivals, "too many rows");
  const torch::stable::accelerator::DeviceGuard guard(words.get_device_index());
  const LinearPlan plan{static_cast<int>(shape), static_cast<int>(blocks)};
  sparse_product(problem, &plan);
  return shaped(problem, x);
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("tiled_csl_linear", TORCH_BOX(&tiled_csl_linear));
  m.impl("tiled_csl_linear_planned", TORCH_BOX(&tiled_csl_linear_planned));
}

}  // namespace
}  // namespace flashsparse
