# SPDX-License-Identifier: Apache-2.0
"""The ops of lossless: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch.library import get_ctx, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd

__all__ = ["CHUNK_BYTES", "CHUNK_COLUMNS", "ops", "row_bytes"]

CHUNK_COLUMNS, CHUNK_BYTES = 128, 192


def row_bytes(in_features: int) -> int:
    """Bytes of a packed row: 192 for each 128 columns, or part of them."""
    return (in_features + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS * CHUNK_BYTES


@register_fake("flashsparse::lossless_pack")
def _(weight):
    """Packs weight [out_features, in_features], bfloat16, to 12 bits an element and exceptions.

    Returns (weight_packed uint8 [out_features, row_bytes], weight_base uint8 [out_features],
    weight_exception_rows int32 [out_features + 1], weight_exception_columns int32 [n],
    weight_exceptions int16 [n]): an element is its sign, its fraction and a 4-bit code, its
    exponent less the base of its row; n elements without a code are listed. The same bit for bit
    on every device.

    Source: 4-bit exponent codes as in Turbo-Lossless (2026); docs/lossless.md.
    """
    out_features, in_features = weight.shape
    exceptions = get_ctx().new_dynamic_size()
    return (
        weight.new_empty(out_features, row_bytes(in_features), dtype=torch.uint8),
        weight.new_empty(out_features, dtype=torch.uint8),
        weight.new_empty(out_features + 1, dtype=torch.int32),
        weight.new_empty(exceptions, dtype=torch.int32),
        weight.new_empty(exceptions, dtype=torch.int16),
    )


@register_fake("flashsparse::lossless_validate")
def _(
    weight_packed,
    weight_base,
    weight_exception_rows,
    weight_exception_columns,
    weight_exceptions,
    out_features,
    in_features,
):
    """Counts the nonzeros (int64 scalar) of sound lossless tensors, and raises on any others."""
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::lossless_unpack")
def _(
    weight_packed,
    weight_base,
    weight_exception_rows,
    weight_exception_columns,
    weight_exceptions,
    out_features,
    in_features,
    dtype,
):
    """Unpacks to the weight [out_features, in_features], bfloat16, bit for bit.

    Offsets that leave the lists of exceptions raise; a column outside of the weight is left out.
    """
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::lossless_rows")
def _(
    ids,
    weight_packed,
    weight_base,
    weight_exception_rows,
    weight_exception_columns,
    weight_exceptions,
    in_features,
):
    """Rows of the weight by their numbers, as an embedding reads them, without unpacking.

    ids is int64, of any shape; a number that is no row raises. Returns bfloat16
    [*ids.shape, in_features].
    """
    return weight_packed.new_empty(*ids.shape, in_features, dtype=torch.bfloat16)


@register_fake("flashsparse::lossless_linear")
def _(
    x,
    weight_packed,
    weight_base,
    weight_exception_rows,
    weight_exception_columns,
    weight_exceptions,
    out_features,
    weight_dtype,
    bias=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.
    Exceptions join sums in float32: infinities and NaN of x or of the weight give what they give in
    a dense product. weight_dtype is bfloat16.
    """
    torch._check(
        weight_packed.shape[1] == row_bytes(x.shape[-1]),
        lambda: (
            f"weight_packed of a weight with {x.shape[-1]} columns has {row_bytes(x.shape[-1])} "
            f"bytes a row, not {weight_packed.shape[1]}"
        ),
    )
    return linear_result(x, out_features, bias)


register_linear_autograd("lossless_linear", unpack="lossless_unpack")
