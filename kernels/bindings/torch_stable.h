// SPDX-License-Identifier: Apache-2.0
// All that is used of PyTorch: the stable ABI, which later releases keep. Bindings only; no kernel
// includes this.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>  // torch 2.11 does not bring it along
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <vector>

#include "common/check.h"

namespace flashsparse {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// An uninitialized tensor. By torch's C function: a stable op is looked up by name and called with
// boxed arguments, which takes longer than a small product.
inline Tensor allocate_on(const std::vector<int64_t>& shape, ScalarType dtype, int32_t device_type,
                          int32_t device_index) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= std::max<int64_t>(shape[i], 1)) strides[i] = step;
  AtenTensorHandle made = nullptr;
  const int32_t type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  if (aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides.data(),
                               type, device_type, device_index, &made) != AOTI_TORCH_SUCCESS) {
    // The stable ABI reports where in its source a failure occurred, but not why.
    std::ostringstream sizes;
    for (const int64_t size : shape) sizes << (sizes.tellp() > 0 ? ", " : "") << size;
    fail("out of memory: there is no room for a tensor of [", sizes.str(), "]");
  }
  return Tensor(made);
}

inline Tensor allocate(const std::vector<int64_t>& shape, ScalarType dtype) {
  return allocate_on(shape, dtype, aoti_torch_device_type_cpu(), -1);
}
// On the device of `like`, in its dtype unless given.
inline Tensor allocate_like(const Tensor& like, const std::vector<int64_t>& shape,
                            std::optional<ScalarType> dtype = std::nullopt) {
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  return allocate_on(shape, dtype.value_or(like.scalar_type()), device_type, device_index);
}

// The tensor itself if it is contiguous: even then a stable op would cost a call.
inline Tensor as_contiguous(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}
inline Tensor in_dtype(const Tensor& t, ScalarType dtype) {
  return t.scalar_type() == dtype ? t : torch::stable::to(t, dtype);
}

// A tensor's memory as kernels read it: 16-bit floats as their bits, int32 words as unsigned.
inline const uint16_t* bits(const Tensor& t) {
  return static_cast<const uint16_t*>(t.const_data_ptr());
}
inline uint16_t* mutable_bits(Tensor& t) { return static_cast<uint16_t*>(t.mutable_data_ptr()); }
inline const uint32_t* words_of(const Tensor& t) {
  return static_cast<const uint32_t*>(t.const_data_ptr());
}
inline uint32_t* mutable_words(Tensor& t) { return static_cast<uint32_t*>(t.mutable_data_ptr()); }
}  // namespace flashsparse
