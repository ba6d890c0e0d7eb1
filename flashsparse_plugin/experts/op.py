# SPDX-License-Identifier: Apache-2.0
"""`flashsparse::experts`: a whole layer of packed experts as one op.

On a GPU a grouped kernel multiplies it where the format has one (`grouped`). Else, and on a CPU, it
loops over the experts that have tokens, by the kernels of their format.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..formats import find_form
from ..formats.values.dtypes import parse_dtype
from ..packed import Routed, Scheme
from . import grouped
from .activations import NAMES, SWIGLUOAI, between
from .stack import ExpertStack

logger = logging.getLogger(__name__)


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
    limit: float = 0.0,
    alpha: float = 1.702,
    weights_on_input: bool = False,
) -> Tensor:
    """The output of a layer of experts: for each token the weighted sum of those it is routed to.

    On CUDA a layer that is prepared for a grouped kernel (`ExpertStack.prepare`) runs by it, and a
    CUDA graph holds any routing. What the kernel does not compute runs an expert after the other,
    which a log line says once; FLASHSPARSE_STRICT=1 makes it an error.

    Args:
        x: Activations [tokens, hidden].
        topk_ids: Experts of each token, [tokens, k]; an expert that is not among those of `w13` is
            left out, as one of another process is.
        topk_weights: By how much each counts, [tokens, k].
        w13: Gate and up projection, the rows of gate first; as many rows as `w2` has columns where
            the experts have no gate.
        w2: Down projection.
        activation: One of `activations.NAMES`, of the gate.
        w13_bias: Optional [experts, rows].
        w2_bias: Optional [experts, hidden].
        expert_map: int [all experts], the place of each in `w13`; -1 for one that is not there.
        limit: Above 0: bounds the gate from above, and up on both sides.
        alpha: Of "swigluoai", gate * sigmoid(alpha * gate) * (up + 1).
        weights_on_input: Whether `topk_weights` multiply the product of w13, before its bias, and
            not that of w2 (Llama 4).

    Returns:
        [tokens, hidden] in the dtype of x; summed in float32.

    Raises:
        RuntimeError: For arguments that do not fit together; with FLASHSPARSE_STRICT=1 for a layer
            that has no grouped kernel on its GPU.
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
        limit,
        alpha,
        weights_on_input,
    )


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[Scheme, tuple[int, int], tuple[str, ...], int]:
    """Scheme, shape, names of the tensors and sides that `ExpertStack.written` is of."""
    name, dtype, options, (rows, columns), sides = json.loads(text)
    format = find_form(name)
    scheme = format.scheme(parse_dtype(dtype, format.dtypes), options)
    return scheme, (rows, columns), tuple(format.tensors(scheme, (rows, columns))), sides


def _stack(text: str, tensors: Sequence[Tensor], bounds: Tensor) -> ExpertStack:
    scheme, shape, names, sides = _read(text)
    held = dict(zip(names, tensors, strict=True))
    return ExpertStack(scheme, shape, held, bounds, sides, text)


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
    limit: float,
    alpha: float,
    weights_on_input: bool,
) -> Tensor:
    up = _stack(w13_scheme, w13, w13_bounds)
    down = _stack(w2_scheme, w2, w2_bounds)
    _require(x, topk_ids, topk_weights, up, down, activation)
    batch = Routed(
        *(x, topk_ids, topk_weights, activation, limit, alpha),
        *(w13_bias, w2_bias, expert_map, weights_on_input),
    )
    why = grouped.why_not(batch, up, down)
    if why is None:
        return grouped.multiply(batch, up, down)
    if x.is_cuda:
        _fall_back(why)
    one_by_one = _masked if x.is_cuda and torch.cuda.is_current_stream_capturing() else loop
    act = partial(between, inner=down.shape[1], name=activation, limit=limit, alpha=alpha)
    return one_by_one(batch, up, down, act)


@_experts.register_fake
def _(x, topk_ids, topk_weights, w13, w13_bounds, w13_scheme, w2, w2_bounds, w2_scheme, *rest):
    return x.new_empty(x.shape)


def _fall_back(why: str) -> None:
    if os.environ.get("FLASHSPARSE_STRICT") == "1":
        raise RuntimeError(
            f"packed experts have no grouped kernel here: {why}. FLASHSPARSE_STRICT=1 makes this "
            'an error. Remedy: experts="dense" unpacks them while they load'
        )
    _say_once(why)


@lru_cache(maxsize=64)
def _say_once(why: str) -> None:
    logger.warning("packed experts run one after the other on the GPU, slower than dense: %s", why)


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
    if activation not in NAMES:
        raise RuntimeError(f"activation {activation!r} is not one of {', '.join(NAMES)}")
    if activation == SWIGLUOAI and up.shape[0] == inner:
        raise RuntimeError(f"activation {activation!r} is of gate and up, and there is no gate")


Act = Callable[[Tensor], Tensor]
"""What comes between the projections, of gate and up side by side."""


def loop(batch: Routed, w13: ExpertStack, w2: ExpertStack, act: Act) -> Tensor:
    """`multiply` without an op: an expert after the other, each on the rows of its tokens.

    Args:
        batch: Whose activation, limit and alpha are not read: `act` knows them.
        w13: Gate and up projection.
        w2: Down projection.
        act: Between them.
    """
    x = batch.x
    ids = grouped.local_ids(batch.ids, batch.expert_map, w13.experts).flatten()
    order = ids.argsort(stable=True)
    present, sizes = ids[order].unique_consecutive(return_counts=True)
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    slots = order.split(sizes.tolist())
    for expert, own in zip(present.tolist(), slots, strict=True):
        if expert == w13.experts:  # of another process
            continue
        token = own // batch.ids.shape[1]
        weight = batch.weights.flatten()[own, None].float()
        y = y.index_add(0, token, _one(x[token], weight, expert, batch, w13, w2, act))
    return y.to(x.dtype)


def _masked(batch: Routed, w13: ExpertStack, w2: ExpertStack, act: Act) -> Tensor:
    """`loop` for a CUDA graph, which has to hold any routing: each expert on all tokens."""
    x, by_slot = batch.x, batch.weights_on_input
    ids = grouped.local_ids(batch.ids, batch.expert_map, w13.experts)
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(w13.experts):
        for j in range(ids.shape[1] if by_slot else 1):
            here = ids[:, j : j + 1] == expert if by_slot else ids == expert
            own = batch.weights[:, j : j + 1] if by_slot else batch.weights
            weight = (own.float() * here).sum(1, keepdim=True)
            out = _one(x, weight, expert, batch, w13, w2, act)
            y = torch.where(here.any(1, keepdim=True), y + out, y)
    return y.to(x.dtype)


def _one(
    x: Tensor,
    weight: Tensor,
    expert: int,
    batch: Routed,
    w13: ExpertStack,
    w2: ExpertStack,
    act: Act,
) -> Tensor:
    """What one expert adds to its tokens x, float32 [tokens, hidden]; weight is [tokens, 1]."""
    biases = (batch.w13_bias, batch.w2_bias)
    first, last = (None if bias is None else bias[expert] for bias in biases)
    if not batch.weights_on_input:
        h = act(w13.linear(expert, x, first)).contiguous()
        return w2.linear(expert, h, last).float() * weight
    both = w13.linear(expert, x).float() * weight
    both = both if first is None else both + first.float()
    return w2.linear(expert, act(both).to(x.dtype).contiguous(), last).float()
