# SPDX-License-Identifier: Apache-2.0
"""A layer of experts in sparse_24: what the format knows of it, and the op that multiplies it.

The op's schema is registered in kernels/bindings. On a CPU it is there for tests, and in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torch.library import impl, register_fake

from ....gpu import Gpu
from ....ops import ops
from ....ops.plan import Product, choose_kernel, plan
from ....packed import Routed, Scheme
from ....packed.experts import GroupedExperts
from ...units import UNIT_ROWS, unit_grid
from ...values.quantization import SCALE
from ..options import options_of
from .ops import unit_layout

MOST_EXPERTS = 1024  # kMostExperts in kernels/cuda/experts/routing.h
# Columns that share a scale, by the values that the kernel is compiled for; None: all of a row.
GROUPS: Final[Mapping[str, tuple[int | None, ...]]] = {
    "native": (None,),
    "fp8_e4m3": (None, 128),
    "int8": (None,),
    "int4": (32, 128),
}


class Experts24(GroupedExperts[Scheme]):
    """The part of sparse_24 that knows its grouped kernel."""

    expert_rows = UNIT_ROWS
    expert_activations = ("silu", "swigluoai")

    def why_not_grouped(self, scheme: Scheme, experts: int) -> str | None:
        options = options_of(scheme)
        if options.group not in GROUPS.get(options.values, ()):
            by = f"groups of {options.group}" if options.group else "rows"
            return f"the grouped kernel is not compiled for {options.values} with scales of {by}"
        if scheme.rounds_activations:
            return "the grouped kernel does not quantize activations"
        if experts > MOST_EXPERTS:
            return f"the grouped kernel takes at most {MOST_EXPERTS} experts, not {experts}"
        return None

    def multiply_experts(
        self,
        batch: Routed,
        w13: Mapping[str, Tensor],
        w2: Mapping[str, Tensor],
        scheme: Scheme,
        experts: int,
        intermediate: int,
    ) -> Tensor:
        options, weights = options_of(scheme), []
        for held in (w13, w2):
            scale = held.get(SCALE)
            scale = None if scale is None else scale.view(experts, -1)
            weights += [held["units"].unflatten(0, (experts, -1)), scale]
        where = batch.expert_map
        return ops.sparse_24_experts(
            batch.x,
            batch.ids.contiguous(),
            batch.weights,
            *weights,
            intermediate,
            scheme.dtype,
            options.values,
            options.group or 0,
            batch.activation,
            batch.limit,
            batch.alpha,
            batch.w13_bias,
            batch.w2_bias,
            where if where is None else where.int().contiguous(),
            batch.weights_on_input,
        )

    def experts_seconds(
        self,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: tuple[int, int],
        tokens: int,
        experts: tuple[int, int],
        gpu: Gpu,
    ) -> float:
        options = options_of(scheme)
        up, down = (
            Product(own, tokens, size, options.values, options.group or 0, experts=experts)
            for own, size in zip((shape, shape[::-1]), nbytes, strict=True)
        )
        many = "many_" if choose_kernel("sparse_24_experts", up, gpu) == "many" else ""
        products = (f"{many}up", up), (f"{many}down", down)
        return sum(plan(f"sparse_24_experts.{name}", each, gpu).seconds for name, each in products)


def _check(x, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, intermediate, values, group):
    layout, (experts, _, _, _) = unit_layout(values, group), w13.shape
    hidden = x.shape[1]
    for name, units, scale, shape, sides in (
        ("w13", w13, w13_scale, (intermediate, hidden), 2),
        ("w2", w2, w2_scale, (hidden, intermediate), 1),
    ):
        down, across = unit_grid(*shape)
        wanted = [experts, sides * down, across, layout.words]
        torch._check(
            list(units.shape) == wanted,
            lambda: f"{name} must be units {wanted}, not {list(units.shape)}",  # noqa: B023
        )
        rows = [experts, sides * down * UNIT_ROWS]
        torch._check(
            (list(scale.shape) == rows) if layout.has_row_scales else scale is None,
            lambda: f"{name}_scale must be {rows} where values have scales of rows",  # noqa: B023
        )
    torch._check(
        topk_ids.shape == topk_weights.shape and len(topk_ids) == len(x),
        lambda: f"topk_ids and topk_weights must be [{len(x)}, top_k]",
    )


@register_fake("flashsparse::sparse_24_experts")
def _(
    x,
    topk_ids,
    topk_weights,
    w13,
    w13_scale,
    w2,
    w2_scale,
    intermediate,
    weight_dtype,
    values="native",
    group=0,
    activation="silu",
    limit=0.0,
    alpha=1.702,
    w13_bias=None,
    w2_bias=None,
    expert_map=None,
    weights_on_input=False,
):
    """Computes a layer of experts: y [tokens, hidden] of x [tokens, hidden], a 16-bit dtype.

    Of each token's experts, y adds up weight * (w2 @ activation(w13 @ x + w13_bias) + w2_bias).

    w13, int32 [experts, 2 * ceil(intermediate / 16), ceil(hidden / 256), words], has rows of units
    of gate and of up alternately (`alternate`), w2 [experts, ceil(hidden / 16),
    ceil(intermediate / 256), words]; scales of rows are float32 [experts, 16 * rows of units],
    where values have them. On CUDA values are native, fp8_e4m3 (group 0 or 128), int8 (group 0) or
    int4 (group 32 or 128). Biases are [experts, 2 * intermediate], gate's before up's, and
    [experts, hidden].

    topk_ids and expert_map are those of experts_order: experts that are not here add nothing.
    topk_weights, [tokens, top_k], multiply the product of w2; with weights_on_input that of w13,
    before its bias. "silu" is silu(gate) * up, "swigluoai" gate * sigmoid(alpha * gate) * (up + 1);
    limit, where it is above 0, bounds gate from above and up on both sides.

    On CUDA it is four or five launches, whose sizes follow from those of the tensors: a CUDA graph
    holds any routing. Sums are kept in float32; what lies between the products has the dtype of x.
    There are two kernels, by mma and, for more tokens an expert on Hopper, by wgmma; by either of
    them a token's result has the same bits in any batch.
    """
    _check(x, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, intermediate, values, group)
    return torch.empty_like(x)


@impl("flashsparse::sparse_24_experts", "CPU")
def _experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: Tensor,
    w13_scale: Tensor | None,
    w2: Tensor,
    w2_scale: Tensor | None,
    intermediate: int,
    weight_dtype: torch.dtype,
    values: str = "native",
    group: int = 0,
    activation: str = "silu",
    limit: float = 0.0,
    alpha: float = 1.702,
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    expert_map: Tensor | None = None,
    weights_on_input: bool = False,
) -> Tensor:
    _check(x, topk_ids, topk_weights, w13, w13_scale, w2, w2_scale, intermediate, values, group)
    torch._check(activation in ("silu", "swigluoai"), lambda: f"there is no {activation} here")
    slots, block_experts, _ = ops.experts_order(topk_ids, len(w13), 1, expert_map)
    y = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(len(w13)):
        own = slots[: len(block_experts)][block_experts == expert]
        if not len(own):
            continue
        token = own // topk_ids.shape[1]
        weight = topk_weights.flatten()[own].float()[:, None]

        def product(x, units, scale, rows, expert=expert):
            scale = scale if scale is None else scale[expert][:rows, None].contiguous()
            arguments = (rows, x.shape[1], weight_dtype, scale, values, group)
            return x @ ops.sparse_24_unpack(units.contiguous(), *arguments).float().T

        sides = []
        for side in (0, 1):
            scale = w13_scale
            if scale is not None:
                scale = scale.view(len(w13), -1, 2, UNIT_ROWS)[:, :, side].flatten(1)
            h = product(x[token].float(), w13[expert, side::2], scale, intermediate)
            h = h * weight if weights_on_input else h
            sides.append(h if w13_bias is None else h + w13_bias[expert].chunk(2)[side].float())
        gate, up = sides
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        is_silu = activation == "silu"
        h = gate * torch.sigmoid(gate * (1 if is_silu else alpha)) * (up if is_silu else up + 1)
        h = product(h.to(x.dtype).float(), w2[expert], w2_scale, x.shape[1])
        h = h if w2_bias is None else h + w2_bias[expert].float()
        y.index_add_(0, token, h if weights_on_input else h * weight)
    return y.to(x.dtype)
