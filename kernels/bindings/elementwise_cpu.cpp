// SPDX-License-Identifier: Apache-2.0
// The schemas of the ops between products. Their CPU implementations are torch's own ops
// (flashsparse_plugin/ops/elementwise.py).
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float epsilon, bool adds_one=False) -> Tensor");
  m.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float epsilon, bool adds_one=False) "
      "-> (Tensor y, Tensor sum)");
  m.def("gate_mul(Tensor x, str activation) -> Tensor");
  m.def(
      "rope(Tensor query, Tensor key, Tensor positions, Tensor cos_sin, bool is_neox) -> "
      "(Tensor query, Tensor key)");
  m.def(
      "rope_cache(Tensor(a!)? query, Tensor(b!) key, Tensor? value, Tensor? positions, "
      "Tensor? cos_sin, bool is_neox, Tensor(c!)? key_cache=None, Tensor(d!)? value_cache=None, "
      "Tensor? slots=None) -> ()");
}

}  // namespace
}  // namespace flashsparse
