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
}  // namespace flashsparse
