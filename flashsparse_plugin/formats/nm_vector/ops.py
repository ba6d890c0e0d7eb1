# SPDX-License-Identifier: Apache-2.0
"""The ops of nm_vector: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake
from torch.nn import functional as F

from ...ops import ops
from ...ops.packed_linear import linear_result, register_linear_autograd
from ..nm_pattern import PatternOptions, unpack_positions
from ..values import value_bits

__all__ = ["ops"]

_SLAB = 1 << 24  # entries whose columns are made at once


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
def _(weight_packed, weight_index, out_features, in_features, n, m, vector_length, dtype):
    """Unpacks nm_vector to the dense weight [out_features, in_features] of `dtype`."""
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::nm_vector_validate")
def _(weight_packed, weight_index, out_features, in_features, n, m, vector_length):
    """Counts the nonzeros (int64 scalar) of sound nm_vector tensors, and raises on any others.

    CPU only.
    """
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::nm_vector_linear")
def _(x, weight_packed, weight_index, out_features, n, m, vector_length, weight_dtype, bias=None):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    By unpacking and torch's own linear: it runs in every place and for every pattern, and is what
    prepared layers use only where no other form fits. x is float32, float16 or bfloat16 and its
    dtype rules the arithmetic; sums are kept in float32.

    Source: NM-SpMM, section II (the pattern).
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("nm_vector_linear", unpack="nm_vector_unpack")


def unpack_by_index(
    weight_packed, weight_index, out_features, in_features, n, m, vector_length, dtype
):
    """nm_vector_unpack by torch's own ops, on any device: slabs of rows, scattered by column."""
    options = PatternOptions(n=n, m=m, vector_length=vector_length)
    kept = options.kept(in_features)
    windows = torch.arange(kept, device=weight_packed.device) // n * m
    weight = weight_packed.new_zeros(out_features, -(-in_features // m) * m)
    slab = vector_length * max(1, _SLAB // (kept * vector_length))
    for first in range(0, out_features, slab):
        groups = slice(first // vector_length, options.groups(min(first + slab, out_features)))
        columns = unpack_positions(weight_index[groups], kept, options.index_bits) + windows
        rows = weight[first : first + slab]
        columns = columns.repeat_interleave(vector_length, 0)[: len(rows)]
        rows.scatter_(1, columns, weight_packed[first : first + slab])
    return weight[:, :in_features].contiguous().view(dtype)


def linear_by_index(
    x, weight_packed, weight_index, out_features, n, m, vector_length, weight_dtype, bias=None
):
    """nm_vector_linear by torch's own ops, on any device."""
    weight = unpack_by_index(
        weight_packed, weight_index, out_features, x.shape[-1], n, m, vector_length, weight_dtype
    )
    compute = x.dtype if x.dtype == weight_dtype else torch.float32
    y = F.linear(x.to(compute), weight.to(compute), None if bias is None else bias.to(compute))
    return y.to(x.dtype)


impl("flashsparse::nm_vector_unpack", "CUDA", unpack_by_index)
impl("flashsparse::nm_vector_linear", "CUDA", linear_by_index)
