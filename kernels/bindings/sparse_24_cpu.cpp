// SPDX-License-Identifier: Apache-2.0
// The schemas of the ops of sparse_24. On a CPU they are implemented in torch
// (flashsparse_plugin/formats/sparse_24).
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "sparse_24_unpack(Tensor units, int out_features, int in_features, ScalarType dtype, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0) -> Tensor");
  m.def(
      "sparse_24_linear(Tensor x, Tensor units, int out_features, ScalarType weight_dtype, "
      "Tensor? bias=None, int? sparse_tokens=None, int? few_tokens=None, "
      "Tensor? weight_scale=None, str values=\"native\", int group=0, Tensor? x_scales=None) "
      "-> Tensor");
  m.def(
      "sparse_24_linear_rounded(Tensor x, Tensor units, Tensor weight_scale, int out_features, "
      "ScalarType weight_dtype, str values, Tensor? bias=None, int? few_tokens=None) -> Tensor");
  m.def(
      "sparse_24_experts(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor w13, "
      "Tensor? w13_scale, Tensor w2, Tensor? w2_scale, int intermediate, ScalarType weight_dtype, "
      "str values=\"native\", int group=0, str activation=\"silu\", float limit=0.0, "
      "float alpha=1.702, Tensor? w13_bias=None, Tensor? w2_bias=None, Tensor? expert_map=None, "
      "bool weights_on_input=False) -> Tensor");
}

}  // namespace
}  // namespace flashsparse
