# SPDX-License-Identifier: Apache-2.0
"""The ops of the interleaved bitmap: what each means, its shapes for torch.compile, the gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import get_ctx, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd
from ...values.dtypes import value_bits

__all__ = ["ops"]


@register_fake("flashsparse::interleaved_bitmap_pack")
def _(weight):
    """Packs a dense weight to the CPU's runtime form: (values, masks, panel_offsets).

    weight is float32, float16 or bfloat16 [out_features, in_features], or int8 codes.
    """
    stored = torch.int8 if weight.dtype == torch.int8 else value_bits(weight.dtype)
    return empty_bitmap(weight, weight.shape[0], weight.shape[1], stored)


def check_row_scales(weight_scale: Tensor | None, out_features: int) -> None:
    """What ops ask of the scales of codes, for torch.compile."""
    if weight_scale is not None:
        torch._check(
            weight_scale.dim() == 2
            and weight_scale.shape[0] == out_features
            and weight_scale.shape[1] == 1,
            lambda: f"weight_scale must be [{out_features}, 1], not {list(weight_scale.shape)}",
        )


def empty_bitmap(
    like: Tensor, out_features: int, in_features: int, stored: torch.dtype = torch.int16
) -> tuple[Tensor, Tensor, Tensor]:
    """(values, masks, panel_offsets) of a weight, for torch.compile."""
    panels, values = (out_features + 15) // 16, get_ctx().new_dynamic_size()
    return (
        like.new_empty(values, dtype=stored),
        like.new_empty((panels, (in_features + 1) // 2), dtype=torch.int32),
        like.new_empty(panels + 1, dtype=torch.int64),
    )


@register_fake("flashsparse::interleaved_bitmap_validate")
def _(values, masks, panel_offsets, out_features, in_features):
    """Counts the kept values (int64 scalar) of a sound interleaved bitmap, and raises on others."""
    return values.new_empty((), dtype=torch.int64)


@register_fake("flashsparse::interleaved_bitmap_unpack")
def _(values, masks, panel_offsets, out_features, in_features, dtype, weight_scale=None):
    """Unpacks the interleaved bitmap to the dense weight [out_features, in_features] of `dtype`.

    With weight_scale, float32 [out_features, 1], values are int8 codes, and the weight is code x
    scale in float32, rounded. int8 as the dtype gives such codes as they are, without a scale.
    """
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::interleaved_bitmap_linear")
def _(x, values, masks, panel_offsets, out_features, weight_dtype, bias=None, weight_scale=None):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.
    With weight_scale, float32 [out_features, 1], values are int8 codes: they are multiplied by x in
    float32, and sums by scales.
    """
    check_row_scales(weight_scale, out_features)
    columns = (x.shape[-1] + 1) // 2
    torch._check(
        masks.shape[1] == columns,
        lambda: (
            f"masks of a weight with {x.shape[-1]} columns have {columns}, not {masks.shape[1]}"
        ),
    )
    return linear_result(x, out_features, bias)


register_linear_autograd("interleaved_bitmap_linear", unpack="interleaved_bitmap_unpack")
