// SPDX-License-Identifier: Apache-2.0
// What the CPU bindings share: dtypes as the kernels name them, and fresh tensors.
#pragma once
#include <vector>

#include "bindings/torch_stable.h"
#include "common/huge_pages.h"
#include "cpu/dtype.h"

namespace flashsparse {

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

inline Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype) {
  Tensor tensor = allocate(shape, dtype);
  prefer_huge_pages(tensor.mutable_data_ptr(), tensor.numel() * tensor.element_size());
  return tensor;
}

}  // namespace flashsparse
