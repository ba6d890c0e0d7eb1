# SPDX-License-Identifier: Apache-2.0
"""The ops of tiled_bitmap: what each means, its shapes for torch.compile, and the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import get_ctx, impl, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd
from ...values.activations import rounded_tokens
from ...values.types import VALUE_TYPES
from ..interleaved_bitmap.ops import check_row_scales, empty_bitmap
from ..tiled_csl.ops import empty_tiles

__all__ = ["ops"]


def _units(out_features: int, in_features: int) -> int:
    return (out_features + 15) // 16 * ((in_features + 255) // 256)


def _check_offsets(unit_offsets: Tensor, out_features: int, in_features: int) -> None:
    units = _units(out_features, in_features)
    torch._check(
        unit_offsets.shape[0] == units + 1,
        lambda: (
            f"unit_offsets of a [{out_features}, {in_features}] weight has {units + 1} "
            f"entries, not {unit_offsets.shape[0]}"
        ),
    )


def _empty_units(like: Tensor, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """(weight_packed, unit_offsets) of a weight, for torch.compile."""
    lines = get_ctx().new_dynamic_size()
    return (
        like.new_empty((lines, 32), dtype=torch.int32),
        like.new_empty(_units(out_features, in_features) + 1, dtype=torch.int32),
    )


@register_fake("flashsparse::tiled_bitmap_pack")
def _(weight: Tensor):
    """tiled_bitmap_pack(weight) -> (weight_packed, unit_offsets)

    Packs weight [out_features, in_features] (float16 or bfloat16, or int8 codes, whose items have 8
    bits) to tiled_bitmap: int32 lines of 32 words, and the int32 line at which each unit begins
    (docs/tiled_bitmap.md). The same bit for bit on every device. On CUDA it waits for the device,
    to learn how many lines there are: no part of a CUDA graph.
    """
    return _empty_units(weight, *weight.shape)


@register_fake("flashsparse::tiled_bitmap_unpack")
def _(weight_packed, unit_offsets, out_features, in_features, dtype, weight_scale=None):
    """Unpacks tiled_bitmap to the dense weight [out_features, in_features] of `dtype`.

    With weight_scale, float32 [out_features, 1], items are codes of 8 bits, and the weight is code
    x scale in float32, rounded. int8 as the dtype gives such codes as they are, without a scale.
    """
    return weight_packed.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::tiled_bitmap_validate")
def _(weight_packed, unit_offsets, out_features, in_features, item_bits=16):
    """Counts the kept values (int64 scalar) of sound tiled_bitmap tensors, and raises on others.

    item_bits is 16, or 8 of codes. On CUDA it waits for the device.
    """
    return weight_packed.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::tiled_bitmap_to_interleaved_bitmap")
def _(weight_packed, unit_offsets, out_features, in_features, item_bits=16):
    """Turns tiled_bitmap into the CPU's runtime form: (values, masks, panel_offsets).

    item_bits is 16, or 8 of codes, which are int8 there.
    """
    stored = torch.int8 if item_bits == 8 else torch.int16
    return empty_bitmap(weight_packed, out_features, in_features, stored)


@register_fake("flashsparse::interleaved_bitmap_to_tiled_bitmap")
def _(values, masks, panel_offsets, out_features, in_features):
    """Turns the CPU's runtime form back into tiled_bitmap: (weight_packed, unit_offsets).

    int8 values are codes, whose items have 8 bits.
    """
    return _empty_units(values, out_features, in_features)


@register_fake("flashsparse::tiled_bitmap_to_tiled_csl")
def _(weight_packed, unit_offsets, out_features, in_features):
    """Turns tiled_bitmap into Tiled-CSL: (weight_packed, tile_offsets)."""
    return empty_tiles(weight_packed, out_features, in_features)


@register_fake("flashsparse::tiled_csl_to_tiled_bitmap")
def _(weight_packed, tile_offsets, out_features, in_features):
    """Turns Tiled-CSL into tiled_bitmap: (weight_packed, unit_offsets)."""
    return _empty_units(weight_packed, out_features, in_features)


@register_fake("flashsparse::tiled_bitmap_linear")
def _(
    x,
    weight_packed,
    unit_offsets,
    out_features,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
    weight_scale=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens are multiplied by the sparse kernels; for more the weight is
    unpacked, and torch's own linear multiplies. None: as many as the kernels are made for; 0:
    always unpacked; a negative number raises. Of them, up to few_tokens go to the kernel for few
    tokens (mma) and more to the one for many (wgmma, compute capability 9.0; elsewhere one kernel
    takes them all). None: 32. The choice is made in each call, from sizes
    alone: a graph of torch.compile holds any number of tokens. A weight whose dtype x has not is
    always unpacked. On a CPU there is one implementation, and neither number changes anything.

    With weight_scale, float32 [out_features, 1], items are codes of 8 bits. Kernels multiply codes,
    and sums by scales, in float32: code x scale is not rounded to weight_dtype.

    Source: Flash-LLM, section 4.1 (load as sparse, compute as dense).
    """
    _check_offsets(unit_offsets, out_features, x.shape[-1])
    check_row_scales(weight_scale, out_features)
    return linear_result(x, out_features, bias)


@register_fake("flashsparse::tiled_bitmap_linear_rounded")
def _(
    x,
    weight_packed,
    unit_offsets,
    weight_scale,
    out_features,
    weight_dtype,
    values,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
):
    """Computes x [..., in_features] times the transposed weight, with activations of 8 bits.

    values is "int8", the type of the items, with the scales float32 [out_features, 1]. x, of
    weight_dtype, is rounded to such codes with a float32 scale for each token, by which its largest
    magnitude becomes 127. Tensor cores multiply them (W8A8), sums are exact, in int32, and are
    multiplied by both scales before bias [out_features] is added. A token with NaN or an infinity
    gives NaN. The gradient is that of the product of x as it is (straight through).

    On CUDA up to few_tokens tokens (None: as many as sparse_tokens) are multiplied by the decode
    kernel, more, up to sparse_tokens, by the prefill kernel of Hopper; for more the codes are
    unpacked, and torch's own product of int8 with int8 gives the sums. None: as many as that mostly
    takes longer for. All give the same bits, so a token's result does not depend on its batch. On a
    CPU there is one implementation.

    Raises:
        RuntimeError: For another dtype of x than weight_dtype, other values, a negative
            sparse_tokens or few_tokens, and on CUDA for more than 131,072 columns.
    """
    _check_rounded(x, unit_offsets, weight_scale, out_features, weight_dtype, values)
    return linear_result(x, out_features, bias)


def _check_rounded(
    x: Tensor,
    unit_offsets: Tensor,
    weight_scale: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    values: str,
) -> None:
    torch._check(values == "int8", lambda: f"activations are rounded to int8, not {values}")
    _check_offsets(unit_offsets, out_features, x.shape[-1])
    check_row_scales(weight_scale, out_features)
    torch._check(x.dtype == weight_dtype, lambda: "x must have the dtype of the weight")


@impl("flashsparse::tiled_bitmap_linear_rounded", "CPU")
def _linear_rounded(
    x: Tensor,
    weight_packed: Tensor,
    unit_offsets: Tensor,
    weight_scale: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    values: str,
    bias: Tensor | None = None,
    sparse_tokens: int | None = None,
    few_tokens: int | None = None,
) -> Tensor:
    _check_rounded(x, unit_offsets, weight_scale, out_features, weight_dtype, values)
    codes = ops.tiled_bitmap_unpack(
        weight_packed, unit_offsets, out_features, x.shape[-1], torch.int8
    )
    y = rounded_tokens(x, VALUE_TYPES[values]) @ (codes.double() * weight_scale.double()).T
    return (y if bias is None else y + bias.double()).to(x.dtype)


register_linear_autograd("tiled_bitmap_linear", unpack="tiled_bitmap_unpack")
register_linear_autograd("tiled_bitmap_linear_rounded", unpack="tiled_bitmap_unpack")
