// SPDX-License-Identifier: Apache-2.0
// The schemas of the ops of hybrid_units. On a CPU they are implemented in torch
// (flashsparse_plugin/formats/pattern/hybrid_24).
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "hybrid_units_unpack(Tensor units, Tensor unit_offsets, int out_features, int in_features, "
      "ScalarType dtype, Tensor? weight_scale=None, str values=\"native\", int group=0) -> Tensor");
  m.def(
      "hybrid_units_linear(Tensor x, Tensor units, Tensor unit_offsets, int out_features, "
      "ScalarType weight_dtype, Tensor? bias=None, int? sparse_tokens=None, int? few_tokens=None, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0) -> Tensor");
}

}  // namespace
}  // namespace flashsparse
