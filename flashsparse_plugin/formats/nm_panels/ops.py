# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_panels: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

from torch.library import register_fake

from ...ops import ops
from ...ops.packed_linear import linear_result, register_linear_autograd

__all__ = ["ops"]


@register_fake("flashsparse::nm_panels_unpack")
def _(
    values,
    columns,
    out_features,
    in_features,
    vector_length,
    dtype,
    scales=None,
    value_type="native",
    group_entries=0,
):
    """Unpacks nm_panels to the dense weight [out_features, in_features] of `dtype`.

    Codes without scales to the codes as numbers, which float16 holds exactly.
    """
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::nm_panels_linear")
def _(
    x,
    values,
    columns,
    out_features,
    vector_length,
    weight_dtype,
    bias=None,
    scales=None,
    value_type="native",
    group_entries=0,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the result; values and activations are
    widened to float32, where they are exact, and sums are kept in float32. Those of codes are
    multiplied by their scale when a row's, or a group's of group_entries kept values, is complete,
    so that code x scale is not rounded to weight_dtype.

    Source: NM-SpMM, section II (vectors of L rows share their columns).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_panels_linear", unpack="nm_panels_unpack")
