# SPDX-License-Identifier: Apache-2.0
"""`flashsparse::experts`: a whole layer of packed experts as one op.

It loops over the experts that have tokens, by the kernels of their format. On a GPU that is a
launch for each projection of each expert, and slower than dense experts: they run so only where a
user asks for it (`FlashSparseConfig.experts`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from ..formats import find_form
from ..formats.values.dtypes import parse_dtype
from ..packed import PackedWeight, Scheme
from .stack import ExpertStack

ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
"""What an expert may apply to its gate."""


def multiply(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: ExpertStack,
    w2: ExpertStack,
    activation: str,
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    expert_map: Tensor | None = None,
) -> Tensor:
    """The output of a layer of experts: for each token the weighted sum of those it is routed to.

    Args:
        x: Activations [tokens, hidden].
        topk_ids: Experts of each token, [tokens, k]; an expert that is not among those of `w13` is
            left out, as one of another process is.
        topk_weights: By how much each counts, [tokens, k].
        w13: Gate and up projection, the rows of gate first; as many rows as `w2` has columns where
            the experts have no gate.
        w2: Down projection.
        activation: One of `ACTIVATIONS`, of the gate.
        w13_bias: Optional [experts, rows].
        w2_bias: Optional [experts, hidden].
        expert_map: int [all experts], the place of each in `w13`; -1 for one that is not there.

    Returns:
        [tokens, hidden] in the dtype of x; summed in float32.
    """
    return torch.ops.flashsparse.experts(
        x,
        topk_ids,
        topk_weights,
        list(w13.tensors.values()),
        w13.bounds,
        w13.written,
        list(w2.tensors.values()),
        w2.bounds,
        w2.written,
        activation,
        w13_bias,
        w2_bias,
        expert_map,
    )


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[Scheme, tuple[int, int], tuple[str, ...]]:
    """The scheme, the shape and the names of the tensors that `ExpertStack.written` is of."""
    name, dtype, options, (rows, columns) = json.loads(text)
    format = find_form(name)
    scheme = format.scheme(parse_dtype(dtype, format.dtypes), options)
    return scheme, (rows, columns), tuple(scheme.format.tensors(scheme, (rows, columns)))


def _stack(text: str, tensors: Sequence[Tensor], bounds: Tensor) -> ExpertStack:
    scheme, shape, names = _read(text)
    return ExpertStack(scheme, shape, dict(zip(names, tensors, strict=True)), bounds, text)


@torch.library.custom_op("flashsparse::experts", mutates_args=())
def _experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: Sequence[Tensor],
    w13_bounds: Tensor,
    w13_scheme: str,
    w2: Sequence[Tensor],
    w2_bounds: Tensor,
    w2_scheme: str,
    activation: str,
    w13_bias: Tensor | None,
    w2_bias: Tensor | None,
    expert_map: Tensor | None,
) -> Tensor:
    up = _stack(w13_scheme, w13, w13_bounds)
    down = _stack(w2_scheme, w2, w2_bounds)
    _require(x, topk_ids, topk_weights, up, down, activation)
    return loop(
        x, topk_ids, topk_weights, up, down, ACTIVATIONS[activation], w13_bias, w2_bias, expert_map
    )


@_experts.register_fake
def _(x, topk_ids, topk_weights, w13, w13_bounds, w13_scheme, w2, w2_bounds, w2_scheme, *rest):
    return x.new_empty(x.shape)


def _require(
    x: Tensor, ids: Tensor, weights: Tensor, up: ExpertStack, down: ExpertStack, activation: str
) -> None:
    """Raises RuntimeError for arguments that do not fit together."""
    hidden, inner = down.shape
    if x.dim() != 2 or x.shape[1] != up.shape[1] or hidden != up.shape[1]:
        raise RuntimeError(
            f"x {list(x.shape)} must be [tokens, {up.shape[1]}], which is what experts of shapes "
            f"{list(up.shape)} and {list(down.shape)} take and return"
        )
    if up.shape[0] not in (inner, 2 * inner) or up.experts != down.experts:
        raise RuntimeError(
            f"{up.experts} experts {list(up.shape)} and {down.experts} experts {list(down.shape)} "
            f"do not follow each other: w13 has {inner} or {2 * inner} rows"
        )
    if ids.shape != weights.shape or ids.dim() != 2 or len(ids) != len(x):
        raise RuntimeError(
            f"topk_ids {list(ids.shape)} and topk_weights {list(weights.shape)} must be "
            f"[{len(x)}, k] both"
        )
    if activation not in ACTIVATIONS:
        raise RuntimeError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")


def loop(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: ExpertStack,
    w2: ExpertStack,
    act: Callable[[Tensor], Tensor],
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    expert_map: Tensor | None = None,
    gated: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`multiply` without an op: an expert after the other, each on the rows of its tokens.

    Args:
        gated: What comes between the projections; None: `act` of the gate, times up.
    """
    ids = topk_ids if expert_map is None else expert_map[topk_ids.long()]
    order = ids.flatten().argsort(stable=True)
    counts = ids.flatten()[order]
    present, sizes = counts.unique_consecutive(return_counts=True)
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if gated is None:
        gated = partial(_gated, act=act, inner=w2.shape[1])
    slots = order.split(sizes.tolist())
    for expert, own in zip(present.tolist(), slots, strict=True):
        if not 0 <= expert < w13.experts:
            continue
        token = own // ids.shape[1]
        inner = gated(_linear(w13.expert(expert), x[token], w13_bias, expert))
        out = _linear(w2.expert(expert), inner, w2_bias, expert)
        weight = topk_weights.flatten()[own, None]
        y = y.index_add(0, token, out.float() * weight.float())
    return y.to(x.dtype)


def _gated(x: Tensor, act: Callable[[Tensor], Tensor], inner: int) -> Tensor:
    if x.shape[-1] == inner:
        return act(x)
    gate, up = x.chunk(2, -1)
    return act(gate) * up


def _linear(weight: PackedWeight, x: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    own = None if bias is None else bias[expert]
    return weight.linear(x.contiguous(), own)
