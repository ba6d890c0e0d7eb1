# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_vector: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd
from ...values.dtypes import value_bits
from ..options import PatternOptions

__all__ = ["ops"]


@register_fake("flashsparse::nm_vector_pack")
def _(weight: Tensor, n: int, m: int, vector_length: int):
    """nm_vector_pack(weight, n, m, vector_length) -> (weight_packed, weight_index)

    Packs weight [out_features, in_features] (float16, bfloat16 or float32) that follows the pattern
    n:m in groups of vector_length rows: value bits [out_features, kept] (int16 or int32) and
    positions inside the windows, uint8 [groups, bytes]. Raises where it does not follow the
    pattern, naming the first place. The same bit for bit on every device. On CUDA it waits for the
    device, to learn whether the weight follows the pattern: no part of a CUDA graph.
    """
    out_features, in_features = weight.shape
    options = PatternOptions(n=n, m=m, vector_length=vector_length)
    return (
        weight.new_empty(out_features, options.kept(in_features), dtype=value_bits(weight.dtype)),
        weight.new_empty(
            options.groups(out_features), options.index_bytes(in_features), dtype=torch.uint8
        ),
    )


@register_fake("flashsparse::nm_vector_unpack")
def _(
    weight_packed,
    weight_index,
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
    """Unpacks nm_vector to the dense weight [out_features, in_features] of `dtype`.

    Codes (`values` other than native, weight_packed uint8) are multiplied by weight_scale in
    float32, and rounded: float32 [out_features, 1], or, of groups of so many columns, of the
    weight's dtype [out_features, ceil(in_features / group)]. Without weight_scale they are numbers.
    The same bit for bit on every device, and safe for tensors of any origin.
    """
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::nm_vector_validate")
def _(weight_packed, weight_index, out_features, in_features, n, m, vector_length, values="native"):
    """Counts the nonzeros (int64 scalar) of sound nm_vector tensors, and raises on any others.

    Scales of codes are not looked at. On CUDA it waits for the device: no part of a CUDA graph.
    """
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::nm_vector_linear")
def _(
    x,
    weight_packed,
    weight_index,
    out_features,
    n,
    m,
    vector_length,
    weight_dtype,
    bias=None,
    weight_scale=None,
    values="native",
    group=0,
    x_scales=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    By unpacking and torch's own linear: it runs in every place and for every pattern, and is what
    prepared layers use only where no other form fits. x is float32, float16 or bfloat16 and its
    dtype rules the arithmetic; sums are kept in float32. Codes are as for nm_vector_unpack.

    x_scales, float32 [tokens], multiply the sums of their tokens before bias is added: activations
    that are quantized by token, whose codes are x in the weight's 16-bit dtype (CUDA, quantized
    values). So y is rounded once.

    Source: NM-SpMM, section II (the pattern).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_vector_linear", unpack="nm_vector_unpack")
