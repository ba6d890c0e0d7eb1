// SPDX-License-Identifier: Apache-2.0
// The schemas of nm_spmm's ops. All but the product on CUDA are implemented in torch
// (flashsparse_plugin/formats/nm_spmm).
#include "bindings/cpu.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_spmm_unpack(Tensor spmm_values, Tensor spmm_index, Tensor spmm_columns, "
      "Tensor spmm_packed, int out_features, int in_features, int n, int m, int vector_length, "
      "ScalarType dtype) -> Tensor");
  m.def(
      "nm_spmm_linear(Tensor x, Tensor spmm_values, Tensor spmm_index, Tensor spmm_columns, "
      "Tensor spmm_packed, int out_features, int n, int m, int vector_length, "
      "ScalarType weight_dtype, Tensor? bias=None, int? sparse_tokens=None) -> Tensor");
}

}  // namespace
}  // namespace flashsparse
