// SPDX-License-Identifier: Apache-2.0
// The schemas of nm_gather's ops. On a CPU they are implemented in torch
// (flashsparse_plugin/formats/nm_gather).
#include "bindings/cpu.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "nm_gather_unpack(Tensor gather_values, Tensor gather_index, int out_features, "
      "int in_features, int n, int m, int vector_length, ScalarType dtype, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0) -> Tensor");
  m.def(
      "nm_gather_linear(Tensor x, Tensor gather_values, Tensor gather_index, int out_features, "
      "int n, int m, int vector_length, ScalarType weight_dtype, Tensor? bias=None, "
      "int? sparse_tokens=None, Tensor? weight_scale=None, str values=\"native\", "
      "int group=0, Tensor? x_scales=None) -> Tensor");
}

}  // namespace
}  // namespace flashsparse
