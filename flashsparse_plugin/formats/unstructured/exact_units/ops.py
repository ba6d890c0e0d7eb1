# SPDX-License-Identifier: Apache-2.0
"""The ops of exact_units: what each means, its shapes for torch.compile, the gradient, and the CPU.

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
from .exceptions import SLOTS
from .layout import NAMES, UNIT_WORDS, UNIT_WORDS_24, is_24, spread

__all__ = ["ops"]


def check_units(
    units: Tensor,
    row_scales: Tensor,
    slots: Tensor,
    listed: Tensor,
    listed_offsets: Tensor,
    out_features: int,
    in_features: int,
) -> None:
    """Raises RuntimeError unless tensors have the shapes of a weight."""
    down, across = unit_grid(out_features, in_features)
    torch._check(slots.dim() == 3, lambda: "slots must have 3 dimensions")
    torch._check(units.dim() == 3, lambda: "units must have 3 dimensions")
    own, words = slots.shape[2], UNIT_WORDS_24 if is_24(units) else UNIT_WORDS
    torch._check(own in SLOTS, lambda: f"a unit has 4, 8 or 16 slots, not {own}")
    torch._check(listed.dim() == 2, lambda: "listed must be [room, 2]")
    for name, tensor, wanted in (
        ("units", units, (down, across, words)),
        ("row_scales", row_scales, (out_features, 1)),
        ("slots", slots, (down, across, own)),
        ("listed", listed, (listed.shape[0], 2)),
        ("listed_offsets", listed_offsets, (down + 1,)),
    ):
        torch._check(
            tensor.dim() == len(wanted)
            and all(a == b for a, b in zip(tensor.shape, wanted, strict=True)),
            lambda: (
                f"{name} of a [{out_features}, {in_features}] weight must be {list(wanted)}, "  # noqa: B023
                f"not {list(tensor.shape)}"  # noqa: B023
            ),
        )


@register_fake("flashsparse::exact_units_unpack")
def _(units, row_scales, slots, listed, listed_offsets, out_features, in_features):
    """Unpacks exact_units to the weight [out_features, in_features], bfloat16, bit for bit.

    units int32 [unit rows, unit columns, 1536], of 16 x 256 elements each, or 896 of a weight that
    keeps two of every four columns; row_scales float32
    [out_features, 1]; slots int32 [unit rows, unit columns, 4, 8 or 16]; listed int32 [room, 2] and
    listed_offsets int32 [unit rows + 1]: kernels/formats/exact_units.h. The content of listed and
    listed_offsets must be valid (`PackedWeight.validate`).
    """
    check_units(units, row_scales, slots, listed, listed_offsets, out_features, in_features)
    return units.new_empty(out_features, in_features, dtype=torch.bfloat16)


@register_fake("flashsparse::exact_units_linear")
def _(
    x,
    units,
    row_scales,
    slots,
    listed,
    listed_offsets,
    out_features,
    weight_dtype,
    bias=None,
    sparse_tokens=None,
    few_tokens=None,
):
    """Computes x [..., in_features] times the transposed weight, plus bias [out_features].

    x is float32, float16 or bfloat16 and its dtype rules the arithmetic; sums are kept in float32.
    The tensors are those of exact_units_unpack; weight_dtype is bfloat16.

    On CUDA up to sparse_tokens tokens of bfloat16 are multiplied by tensor cores, for which
    registers decode the units, and by sparse tensor cores where these keep two of every four
    columns; for more, and for x of another dtype, the weight is unpacked, and
    torch's own linear multiplies: bit-identical to dense. None: 128, or 512 on compute capability
    9.0; 0: always unpacked; a negative number raises. Of them, up to few_tokens go to the kernel
    for few tokens (mma), and more to the one for many (wgmma, compute capability 9.0; elsewhere one
    kernel takes them all). None: 8. The choice is made in each call, from sizes alone.

    Products are those of a dense weight, but for one case: an infinite x at an exception (a weight
    in slots or in the list) gives NaN, where a dense product gives an infinity.

    Raises:
        RuntimeError: For tensors of other shapes, and another weight_dtype.

    Source: 4-bit exponent codes as in Turbo-Lossless (2026), with a window for each row; the layout
    is our own.
    """
    check_units(units, row_scales, slots, listed, listed_offsets, out_features, x.shape[-1])
    torch._check(weight_dtype == torch.bfloat16, lambda: "exact_units weights are bfloat16")
    return linear_result(x, out_features, bias)


@impl("flashsparse::exact_units_unpack", "CPU")
def _unpack(
    units: Tensor,
    row_scales: Tensor,
    slots: Tensor,
    listed: Tensor,
    listed_offsets: Tensor,
    out_features: int,
    in_features: int,
) -> Tensor:
    held = (units, row_scales, slots, listed, listed_offsets)
    check_units(*held, out_features, in_features)
    return spread(dict(zip(NAMES, held, strict=True)), (out_features, in_features))


register_linear_autograd("exact_units_linear", unpack="exact_units_unpack")
register_unpacked_linear("exact_units_linear", unpack="exact_units_unpack")
