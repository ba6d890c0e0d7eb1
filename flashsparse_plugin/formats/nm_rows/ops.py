# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_rows: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

from torch.library import register_fake

from ...ops import ops
from ...ops.packed_linear import linear_result, register_linear_autograd

__all__ = ["ops"]


@register_fake("flashsparse::nm_rows_unpack")
def _(values, positions, scales, out_features, in_features, n, m, dtype, value_type, group=0):
    """Unpacks nm_rows to the dense weight [out_features, in_features] of `dtype`.

    Without scales to the codes as numbers, which float16 holds exactly.
    """
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::nm_rows_linear")
def _(
    x, values, positions, scales, out_features, n, m, weight_dtype, value_type, group=0, bias=None
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the result; codes and activations are
    widened to float32, where they are exact, and so are sums: a row's or group's is multiplied by
    its scale when it is complete, so that code x scale is not rounded to weight_dtype.

    Source: NM-SpMM, section II (the pattern).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_rows_linear", unpack="nm_rows_unpack")
