# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_gather: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings; on a CPU they are made of torch's own. Whoever
imports `ops` from here has them complete.
"""

from __future__ import annotations

from torch.library import impl, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd, register_unpacked_linear
from ..options import PatternOptions
from .layout import Layout

__all__ = ["ops"]


@register_fake("flashsparse::nm_gather_unpack")
def _(
    gather_values,
    gather_index,
    out_features,
    in_features,
    n,
    m,
    vector_length,
    dtype,
    weight_scale=None,
    values="native",
    group=0,
):
    """Unpacks nm_gather to the dense weight [out_features, in_features] of `dtype`.

    Codes (`values` other than native) are multiplied by their scales in float32, and rounded:
    those of 8 bits by weight_scale, float32 [out_features, 1], and those of 4 by the scales that
    gather_values holds for `group` columns each.
    """
    return gather_values.new_empty(out_features, in_features, dtype=dtype)


@impl("flashsparse::nm_gather_unpack", "CPU")
def _(
    gather_values,
    gather_index,
    out_features,
    in_features,
    n,
    m,
    vector_length,
    dtype,
    weight_scale=None,
    values="native",
    group=0,
):
    options = PatternOptions(
        n=n, m=m, vector_length=vector_length, values=values, group=group or None
    )
    layout = Layout(options, (out_features, in_features))
    return layout.unpack(gather_values, gather_index, dtype, weight_scale)


@register_fake("flashsparse::nm_gather_linear")
def _(
    x,
    gather_values,
    gather_index,
    out_features,
    n,
    m,
    vector_length,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    weight_scale=None,
    values="native",
    group=0,
    x_scales=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.
    Codes are as for nm_gather_unpack; the sparse kernels multiply sums of those of 8 bits by the
    scales, and unpacked weights of those of 4.

    On CUDA up to sparse_tokens tokens are multiplied by the sparse kernels: 16 by one that reads x
    as it is (32 where values take more than 0.35 of the dense weight's bytes), more by one that
    reads a transposed copy of x, or by the first in several launches where vectors have 8 rows. For
    more tokens the weight is unpacked, and torch's own linear multiplies. None: any number; 128 or
    512 where vectors have 8 rows, and 512 to 2048 where more than 0.4 of the columns are kept and
    values are quantized or vectors have less than 64 rows; 0: always unpacked. A weight whose dtype
    x has not is always unpacked. On a CPU it always is.

    x_scales, float32 [tokens], multiply the sums of their tokens before bias is added: activations
    that are quantized by token, whose codes are x in the weight's 16-bit dtype (CUDA, quantized
    values). So y is rounded once.

    Source: NM-SpMM, section III (the gather of activations).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_gather_linear", unpack="nm_gather_unpack")
register_unpacked_linear("nm_gather_linear", unpack="nm_gather_unpack")
