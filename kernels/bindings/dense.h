// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of dense layers, on every device.
#pragma once
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/launch.h"
#include "bindings/torch_stable.h"
#include "cuda/dense/dense_plan.h"

namespace flashsparse {

template <>
struct LaunchNumbers<dense::FlatPlan> {
  static constexpr const char* kFields = "shape split";
  static auto of(dense::FlatPlan& plan) { return std::tie(plan.shape, plan.split); }
};

struct GemvPlan {
  int shape;  // index into dense::kGemvShapes
};

template <>
struct LaunchNumbers<GemvPlan> {
  static constexpr const char* kFields = "shape";
  static auto of(GemvPlan& plan) { return std::tie(plan.shape); }
};

// Why a kernel could not run by a plan; null where it can. aligned: rows of the weight lie on 16
// bytes.
inline const char* broken_rule(const dense::FlatPlan& plan, int64_t rows, int64_t cols,
                               int64_t tokens, bool aligned, const Gpu& gpu) {
  if (plan.shape < 0 || plan.shape >= dense::kFlatShapeCount) return "there is no such shape";
  if (!aligned && plan.shape != dense::kUnalignedFlat) return "the rows do not lie on 16 bytes";
  const dense::FlatShapeInfo& shape = dense::kFlatShapes[plan.shape];
  if (tokens > shape.tokens) return "the shape is for fewer tokens";
  if (shape.shared_bytes() > gpu.shared_bytes) return "too much shared memory";
  if (plan.split < 1 || plan.split > dense::max_split(plan.shape, rows, cols))
    return "the columns are not split into so many parts";
  return nullptr;
}

inline const char* broken_rule(const GemvPlan& plan, int64_t tokens, bool aligned) {
  if (plan.shape < 0 || plan.shape >= dense::kGemvShapeCount) return "there is no such shape";
  if (!aligned && plan.shape != dense::kUnalignedGemv) return "the rows do not lie on 16 bytes";
  return tokens > dense::kGemvShapes[plan.shape].tokens ? "the shape is for fewer tokens" : nullptr;
}

inline constexpr int64_t kMaxFlatGemmTokens = 64, kMaxGemvTokens = 8;

struct DenseSizes {
  int64_t tokens, rows, cols;
  std::vector<int64_t> result;  // [..., rows]
};

// x [..., cols], weight [rows, cols] with any row stride, bias [rows] or nothing: of one 16-bit
// dtype, on one device. Also rejects sizes that exceed the kernels' 32-bit arithmetic.
inline DenseSizes check_dense(const char* op, int64_t max_tokens, const Tensor& x,
                              const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr int64_t kMaxRows = int64_t{1} << 30, kMaxStride = int64_t{1} << 23;
  FS_CHECK(weight.dim() == 2, op, ": weight must be [out_features, in_features], has ",
           weight.dim(), " dimensions");
  const int64_t rows = weight.size(0), cols = weight.size(1);
  FS_CHECK(rows >= 1 && cols >= 1, op, ": a weight needs at least one row and one column, not [",
           rows, ", ", cols, "]");
  FS_CHECK(weight.scalar_type() == ScalarType::Half || weight.scalar_type() == ScalarType::BFloat16,
           op,
           ": weight must be float16 or bfloat16; torch.nn.functional.linear takes other dtypes");
  FS_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == cols, op, ": x must be [..., ", cols, "] for a [",
           rows, ", ", cols, "] weight");
  FS_CHECK(x.scalar_type() == weight.scalar_type(), op,
           ": x must have the dtype of weight: convert it with x.to(weight.dtype)");
  FS_CHECK(x.device() == weight.device(), op, ": x and weight must be on the same device");
  FS_CHECK(cols == 1 || weight.stride(1) == 1, op,
           ": the elements of a row of weight must lie side by side: pass "
           "weight.contiguous()");
  const int64_t stride = rows == 1 ? cols : weight.stride(0);
  FS_CHECK(rows <= kMaxRows && cols <= kMaxStride && stride <= kMaxStride, op, ": a [", rows, ", ",
           cols, "] weight with rows ", stride, " elements apart is too large: split the layer");
  if (bias) {
    FS_CHECK(bias->dim() == 1 && bias->size(0) == rows, op, ": bias must be [", rows, "]");
    FS_CHECK(bias->scalar_type() == weight.scalar_type(), op,
             ": bias must have the dtype of weight");
    FS_CHECK(bias->device() == weight.device(), op, ": bias and weight must be on the same device");
  }
  DenseSizes sizes{x.numel() / cols, rows, cols, {}};
  FS_CHECK(sizes.tokens <= max_tokens, op, ": takes up to ", max_tokens, " tokens, not ",
           sizes.tokens, ": torch.nn.functional.linear is the faster one there");
  for (int64_t i = 0; i + 1 < x.dim(); ++i) sizes.result.push_back(x.size(i));
  sizes.result.push_back(rows);
  return sizes;
}

}  // namespace flashsparse
