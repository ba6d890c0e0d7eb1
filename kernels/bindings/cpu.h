// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU bindings: new tensors.
#pragma once
#include <vector>

#include "bindings/packed.h"
#include "common/huge_pages.h"

namespace flashsparse {

inline Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype) {
  Tensor tensor = allocate(shape, dtype);
  prefer_huge_pages(tensor.mutable_data_ptr(), tensor.numel() * tensor.element_size());
  return tensor;
}

}  // namespace flashsparse
