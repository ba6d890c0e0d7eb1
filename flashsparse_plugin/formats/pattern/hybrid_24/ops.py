# SPDX-License-Identifier: Apache-2.0
"""The ops of the forms of hybrid_24: what each means, its shapes for torch.compile, its gradient.

Their schemas are registered in kernels/bindings. Whoever imports `ops` from here has them complete.
On a CPU no layer runs in hybrid_units: its ops are there for tests, and in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import impl, register_fake

from ....ops import ops
from ....ops.packed_linear import linear_result, register_linear_autograd, register_unpacked_linear
from ...units import unit_grid
from ...values.types import spread_scales
from ..sparse_24.layout import UnitLayout
from ..sparse_24.ops import unit_layout
from .units_layout import read_values, scales_of, unit_sizes

__all__ = ["ops"]


@register_fake("flashsparse::hybrid_panels_unpack")
def _(values, positions, kinds, scales, out_features, in_features, dtype, value_type, group=0):
    """Unpacks hybrid_panels to the dense weight [out_features, in_features] of `dtype`.

    values is uint8 [steps, 16], positions int32 [words, 16], kinds uint8 [ceil(out_features / 16),
    ceil(in_features / 256)], scales [panels, groups, 16]: see kernels/formats/cpu_panels.h. group
    are the columns of a row that share a scale; 0: all of them. Raises RuntimeError where values or
    positions are fewer than kinds ask for; any positions are safe.
    """
    return values.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::hybrid_panels_linear")
def _(
    x, values, positions, kinds, scales, out_features, weight_dtype, value_type, group=0, bias=None
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the result. Codes and activations are
    converted to float32, where they are exact, and accumulators are float32; those of a row, or of
    a group, are multiplied by its scale. The other arguments are those of hybrid_panels_unpack.

    Source: PATCH (arXiv 2509.23410), section 3: tiles that are dense or 2:4.
    """
    return linear_result(x, out_features, bias)


register_linear_autograd("hybrid_panels_linear", unpack="hybrid_panels_unpack")


def _check_units(
    units: Tensor,
    unit_offsets: Tensor,
    out_features: int,
    in_features: int,
    weight_scale: Tensor | None,
    values: str,
    group: int,
) -> UnitLayout:
    """Raises RuntimeError unless tensors have the shapes of a weight."""
    layout = unit_layout(values, group)
    down, across = unit_grid(out_features, in_features)
    torch._check(
        unit_offsets.dim() == 1 and unit_offsets.shape[0] == down * across + 1,
        lambda: (
            f"unit_offsets of a [{out_features}, {in_features}] weight are [{down * across + 1}], "
            f"not {list(unit_offsets.shape)}"
        ),
    )
    least, most = (4 * size * down * across for size in unit_sizes(layout))
    torch._check(
        units.dim() == 1 and least <= 4 * units.shape[0] <= most,
        lambda: (
            f"units of a [{out_features}, {in_features}] weight take {least} to {most} bytes in "
            f"one dimension, not {list(units.shape)}"
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
    return layout


@register_fake("flashsparse::hybrid_units_unpack")
def _(
    units,
    unit_offsets,
    out_features,
    in_features,
    dtype,
    weight_scale=None,
    values="native",
    group=0,
):
    """Unpacks hybrid_units to the dense weight [out_features, in_features] of `dtype`.

    units int32 [words] and unit_offsets int32 [units + 1], in pieces of 64 bytes, are those of
    kernels/formats/hybrid_units.h. The content of unit_offsets must be valid
    (`PackedWeight.validate`). values is the option of a scheme; codes become code x scale in
    float32, rounded. weight_scale, float32 [out_features, 1], is there for codes where group is 0;
    else units hold the scales of `group` columns, 32, 64 or 128.
    """
    _check_units(units, unit_offsets, out_features, in_features, weight_scale, values, group)
    return units.new_empty(out_features, in_features, dtype=dtype)


@register_fake("flashsparse::hybrid_units_linear")
def _(
    x,
    units,
    unit_offsets,
    out_features,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
    weight_scale=None,
    values="native",
    group=0,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.
    The other arguments are those of hybrid_units_unpack.

    On CUDA up to sparse_tokens tokens are multiplied by sparse tensor cores, directly from the
    units, of which dense ones are two products. For more, and for x of another dtype than
    weight_dtype, the weight is unpacked, and torch's own linear multiplies. None: 128, or 1,024 on
    compute capability 9.0; 0: always unpacked; a negative number raises. Of them, up to few_tokens
    go to the kernel for few tokens (mma.sp), and more to the one for many (wgmma.sp, compute
    capability 9.0; elsewhere, and of 8-bit values with scales of groups, one kernel takes them
    all). None: 16, or 32 of native values. The choice is made in each call, from sizes alone.
    Scales are applied as by sparse_24_linear.

    Raises:
        RuntimeError: For tensors of other shapes.

    Source: PATCH (arXiv 2509.23410), section 3: tiles that are dense or 2:4; the layout is our own.
    """
    _check_units(units, unit_offsets, out_features, x.shape[-1], weight_scale, values, group)
    return linear_result(x, out_features, bias)


@impl("flashsparse::hybrid_units_unpack", "CPU")
def _unpack(
    units: Tensor,
    unit_offsets: Tensor,
    out_features: int,
    in_features: int,
    dtype: torch.dtype,
    weight_scale: Tensor | None = None,
    values: str = "native",
    group: int = 0,
) -> Tensor:
    shape = (out_features, in_features)
    layout = _check_units(units, unit_offsets, *shape, weight_scale, values, group)
    bits = read_values(units, unit_offsets, shape, layout)
    if layout.type is None:
        return bits.view(dtype)
    if weight_scale is None:
        weight_scale = scales_of(units, unit_offsets, shape, layout, dtype)[:out_features]
    scales = spread_scales(weight_scale.float(), in_features, layout.group)
    return (layout.type.numbers(bits).float() * scales).to(dtype)


register_linear_autograd("hybrid_units_linear", unpack="hybrid_units_unpack")
register_unpacked_linear("hybrid_units_linear", unpack="hybrid_units_unpack")
