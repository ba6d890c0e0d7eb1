// SPDX-License-Identifier: Apache-2.0
// All that we take from PyTorch: the stable ABI, which later releases keep. Bindings only; no
// kernel includes this.
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>  // torch 2.11 does not bring it along
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace flashsparse {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A tensor's memory as kernels take it: 16-bit floats as their bits, int32 words as unsigned.
inline const uint16_t* bits(const Tensor& t) {
  return static_cast<const uint16_t*>(t.const_data_ptr());
}
inline uint16_t* mutable_bits(Tensor& t) { return static_cast<uint16_t*>(t.mutable_data_ptr()); }
inline const uint32_t* words_of(const Tensor& t) {
  return static_cast<const uint32_t*>(t.const_data_ptr());
}
inline uint32_t* mutable_words(Tensor& t) { return static_cast<uint32_t*>(t.mutable_data_ptr()); }
}  // namespace flashsparse
