# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_panels and nm_rows: what each means, its shapes for torch.compile, its gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.

Products take x in float32, float16 or bfloat16, whose dtype rules the result. Values and
activations are widened to float32, where they are exact, and sums are kept in float32. Those of
codes are multiplied by their scale when a row, or a group, is complete, so that code x scale is not
rounded to weight_dtype.
"""

from __future__ import annotations

from torch.library import register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd

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


@register_fake("flashsparse::nm_rows_unpack")
def _(values, positions, scales, out_features, in_features, n, m, dtype, value_type, group=0):
    """Unpacks nm_rows, as nm_panels_unpack does."""
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

    group_entries are the kept values of a row that share a scale; 0: all of them.

    Source: NM-SpMM, section II (vectors of L rows share their columns).
    """
    return linear_result(x, out_features, bias)


@register_fake("flashsparse::nm_rows_linear")
def _(
    x, values, positions, scales, out_features, n, m, weight_dtype, value_type, group=0, bias=None
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    group are the columns of a row that share a scale; 0: all of them.

    Source: NM-SpMM, section II (the pattern).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_panels_linear", unpack="nm_panels_unpack")
register_linear_autograd("nm_rows_linear", unpack="nm_rows_unpack")
