# SPDX-License-Identifier: Apache-2.0
"""The ops of sparse_24: what each means, its shapes for torch.compile, the gradient, and the CPU.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
On a CPU no layer runs in this form: the ops are there for tests, and in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd, register_unpacked_linear
from ...units import unit_grid
from ...values.activations import rounded_tokens
from ...values.types import VALUE_TYPES
from .layout import UnitLayout, bits_of, spread

__all__ = ["ops"]


def unit_layout(values: str, group: int) -> UnitLayout:
    """How units store their values, by the arguments of ops."""
    layout = UnitLayout(values, group or None)
    torch._check(
        layout.has_kernels,
        lambda: (
            f"units store native values, and codes with scales of rows (group 0) or of 32, 64 "
            f"or 128 columns; not {values} with group {group}"
        ),
    )
    return layout


def check_units(
    units: Tensor,
    out_features: int,
    in_features: int,
    weight_scale: Tensor | None,
    values: str,
    group: int,
) -> None:
    layout = unit_layout(values, group)
    wanted = (*unit_grid(out_features, in_features), layout.words)
    torch._check(
        units.dim() == 3 and all(a == b for a, b in zip(units.shape, wanted, strict=True)),
        lambda: (
            f"units of a [{out_features}, {in_features}] weight are {list(wanted)}, "
            f"not {list(units.shape)}"
        ),
    )
    torch._check(
        (weight_scale is not None) == layout.has_row_scales
        and (weight_scale is None or tuple(weight_scale.shape) == (out_features, 1)),
        lambda: (
            f"weight_scale of {values} must be [{out_features}, 1]"
            if layout.has_row_scales
            else f"{values} values have no weight_scale"
        ),
    )


@register_fake("flashsparse::sparse_24_unpack")
def _(units, out_features, in_features, dtype, weight_scale=None, values="native", group=0):
    """Unpacks sparse_24 to the dense weight [out_features, in_features] of `dtype`.

    values is the option of a scheme; codes become code x scale in float32, rounded.
    weight_scale, float32 [out_features, 1], is there for codes where group is 0; else units hold
    the scales of `group` columns, 32, 64 or 128.
    """
    check_units(units, out_features, in_features, weight_scale, values, group)
    return units.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::sparse_24_linear")
def _(
    x,
    units,
    out_features,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
    weight_scale=None,
    values="native",
    group=0,
    x_scales=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.

    On CUDA up to sparse_tokens tokens are multiplied by sparse tensor cores, directly from the
    units; for more the weight is unpacked, and torch's own linear multiplies. None: 192, or any
    number on compute capability 9.0; 0: always unpacked; a negative number raises. Of them, up to
    few_tokens go to the kernel for few tokens (mma.sp) and more to the one for many (wgmma.sp,
    compute capability 9.0; elsewhere one kernel takes them all). None: 0 to 32, the more the larger
    the layer (kernels/cuda/sparse_24/kernel_choice.h). The choice is made in each call, from sizes
    alone: a graph of torch.compile holds any number of tokens. Always unpacked is a weight whose
    dtype x has not.

    weight_scale, values and group are those of sparse_24_unpack. The sparse kernels multiply codes,
    and sums by scales, in float32: code x scale is not rounded, but for scales of groups and more
    than 8 tokens (16 where 128 columns share a scale).

    x_scales, float32 [tokens], multiply the sums of their tokens before bias is added: activations
    that are quantized by token, whose codes are x in the weight's 16-bit dtype (CUDA, quantized
    values). So y is rounded once.

    Source: sparse tensor cores (Mishra et al., 2021), for the 2:4 case of NM-SpMM's pattern.
    """
    check_units(units, out_features, x.shape[-1], weight_scale, values, group)
    return linear_result(x, out_features, bias)


@register_fake("flashsparse::sparse_24_linear_rounded")
def _(x, units, weight_scale, out_features, weight_dtype, values, bias=None, few_tokens=None):
    """Computes x [..., in_features] times the transposed weight, with activations of 8 bits.

    values is "fp8_e4m3" or "int8", the type of the weight's codes. x, of weight_dtype, is rounded
    to such codes with a float32 scale for each token, by which its largest magnitude becomes 448 or
    127; tensor cores multiply them (W8A8), and sums are multiplied by both scales before bias
    [out_features] is added. A token with NaN or an infinity gives NaN. The gradient is that of the
    product of x as it is (straight through).

    On CUDA fp8_e4m3 needs compute capability 8.9, 9.0 or 12.0, int8 any from 8.0 on. On 9.0 the
    kernel for few tokens (mma.sp) takes up to few_tokens (None: 8, of int8 in layers of more than
    32 M weights only), of fp8_e4m3 as 16-bit floats, and that for many (wgmma.sp) the rest;
    elsewhere the one for few tokens takes any number, by launches of 64. Sums of int8 are exact, in
    int32, so that all give the same bits; those of fp8_e4m3 keep some 14 bits of mantissa from one
    64 columns to the next in wgmma.sp. units and weight_scale are those of sparse_24_linear.

    Raises:
        RuntimeError: For another dtype of x than weight_dtype, other values, and on CUDA for
            fp8_e4m3 without such products, and for int8 of more than 262,144 columns.
    """
    _check_rounded(x, units, weight_scale, out_features, weight_dtype, values)
    return linear_result(x, out_features, bias)


def _check_rounded(
    x: Tensor,
    units: Tensor,
    weight_scale: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    values: str,
) -> None:
    torch._check(
        values in ("fp8_e4m3", "int8"),
        lambda: f"activations are rounded to fp8_e4m3 or int8, not {values}",
    )
    check_units(units, out_features, x.shape[-1], weight_scale, values, 0)
    torch._check(x.dtype == weight_dtype, lambda: "x must have the dtype of the weight")


@impl("flashsparse::sparse_24_linear_rounded", "CPU")
def _linear_rounded(
    x: Tensor,
    units: Tensor,
    weight_scale: Tensor,
    out_features: int,
    weight_dtype: torch.dtype,
    values: str,
    bias: Tensor | None = None,
    few_tokens: int | None = None,
) -> Tensor:
    _check_rounded(x, units, weight_scale, out_features, weight_dtype, values)
    own = VALUE_TYPES[values]
    codes = own.numbers(bits_of(units, (out_features, x.shape[-1]), UnitLayout(values)))
    y = rounded_tokens(x, own) @ (codes.double() * weight_scale.double()).T
    return (y if bias is None else y + bias.double()).to(x.dtype)


@impl("flashsparse::sparse_24_unpack", "CPU")
def _unpack(
    units: Tensor,
    out_features: int,
    in_features: int,
    dtype: torch.dtype,
    weight_scale: Tensor | None = None,
    values: str = "native",
    group: int = 0,
) -> Tensor:
    check_units(units, out_features, in_features, weight_scale, values, group)
    shape = (out_features, in_features)
    return spread(units, shape, dtype, unit_layout(values, group), weight_scale)


register_linear_autograd("sparse_24_linear", unpack="sparse_24_unpack")
register_linear_autograd("sparse_24_linear_rounded", unpack="sparse_24_unpack")
register_unpacked_linear("sparse_24_linear", unpack="sparse_24_unpack")
