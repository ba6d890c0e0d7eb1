// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of packed layers, in any format and on every device: shapes, dtypes
// and devices only. Contents are validated by the format.
#pragma once
#include <cstdint>

#include "bindings/torch_stable.h"
#include "common/dtype.h"

namespace flashsparse {

inline bool is_16_bit(ScalarType dtype) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

// The kernels' name of a dtype.
inline Dtype dtype_of(ScalarType dtype, const char* name) {
  switch (dtype) {
    case ScalarType::Float:
      return Dtype::kFloat32;
    case ScalarType::Half:
      return Dtype::kFloat16;
    case ScalarType::BFloat16:
      return Dtype::kBFloat16;
    default:
      FS_CHECK(false, name, " must be float32, float16 or bfloat16");
      return Dtype::kFloat32;
  }
}

// Check of a CPU op, or of a CUDA op, on its first packed tensor.
inline void check_on_cpu(const Tensor& tensor, const char* name) {
  FS_CHECK(tensor.is_cpu(), name, " must be on the CPU here");
}
inline void check_on_cuda(const Tensor& tensor, const char* name) {
  FS_CHECK(tensor.is_cuda(), name, " must be on a CUDA device here");
}

// `first_name`: the packed tensor whose device is the weight's.
inline void check_beside(const Tensor& tensor, const char* name, const Tensor& first,
                         const char* first_name) {
  FS_CHECK(tensor.device() == first.device(), name, " must be on the ",
           first.is_cuda() ? "CUDA device" : "device", " of ", first_name);
}

inline void check_tensor(const Tensor& tensor, const char* name, ScalarType dtype, int64_t dim) {
  FS_CHECK(tensor.scalar_type() == dtype, name, " has the wrong dtype");
  FS_CHECK(tensor.dim() == dim, name, " must have ", dim, " dimensions, has ", tensor.dim());
  FS_CHECK(tensor.is_contiguous(), name, " must be contiguous");
  const int64_t size = tensor.element_size();
  FS_CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % size == 0, name,
           " must start on a multiple of ", size, " bytes: pass a copy, ", name, ".clone()");
}

inline void check_shape(int64_t out_features, int64_t in_features) {
  FS_CHECK(out_features >= 1 && in_features >= 1 && out_features <= INT32_MAX &&
               in_features <= INT32_MAX,
           "a weight has between 1 and 2^31 - 1 rows and as many columns, not [", out_features,
           ", ", in_features, "]");
}

inline void check_weight_shape(const Tensor& weight) {
  FS_CHECK(weight.dim() == 2, "weight must be [out_features, in_features], has ", weight.dim(),
           " dimensions");
  check_shape(weight.size(0), weight.size(1));
}

// Checks a dense weight that is to be packed.
inline void check_weight(const Tensor& weight) {
  check_weight_shape(weight);
  FS_CHECK(is_16_bit(weight.scalar_type()), "weight must be float16 or bfloat16");
}

inline void check_weight_dtype(ScalarType dtype) {
  FS_CHECK(is_16_bit(dtype), "packed weights are float16 or bfloat16");
}

// Checks scales of rows; `first` as for check_beside.
inline void check_row_scales(const Tensor& scales, int64_t out_features, const Tensor& first,
                             const char* first_name) {
  check_tensor(scales, "weight_scale", ScalarType::Float, 2);
  check_beside(scales, "weight_scale", first, first_name);
  FS_CHECK(scales.size(0) == out_features && scales.size(1) == 1, "weight_scale must be [",
           out_features, ", 1], not [", scales.size(0), ", ", scales.size(1), "]");
}

}  // namespace flashsparse
