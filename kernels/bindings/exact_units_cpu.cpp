// SPDX-License-Identifier: Apache-2.0
// The schemas of the ops of exact_units. On a CPU they are implemented in torch
// (flashsparse_plugin/formats/unstructured/exact_units).
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "exact_units_unpack(Tensor units, Tensor row_scales, Tensor slots, Tensor listed, "
      "Tensor listed_offsets, int out_features, int in_features) -> Tensor");
  m.def(
      "exact_units_linear(Tensor x, Tensor units, Tensor row_scales, Tensor slots, Tensor listed, "
      "Tensor listed_offsets, int out_features, ScalarType weight_dtype, Tensor? bias=None, "
      "int? sparse_tokens=None, int? few_tokens=None) -> Tensor");
}

}  // namespace
}  // namespace flashsparse
