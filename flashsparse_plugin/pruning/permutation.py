# SPDX-License-Identifier: Apache-2.0
"""Reordering hidden channels of feed-forward networks, so that an N:M pattern keeps more.

A window of M columns keeps its N best, also where all M matter. The hidden channels of a
feed-forward network have no order of their own: rows of the layers that produce them and columns of
the layer that reads them can change places together, and the model computes what it did before
(Pool and Yu, "Channel permutations for N:M sparsity", NeurIPS 2021). So important columns can be
spread over the windows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..modules import bias_of, weight_of
from .magnitude import magnitude_scores
from .relay import evaluating
from .rule import PruningRule
from .statistics import InputNorms
from .wanda import wanda_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

ROUNDS = 300  # of exchanges between windows
MOST_SCORES = 1 << 19  # of a weight that exchanges are judged by
PROBE_TOKENS = 16
# Of activations, relative to their norm: sums in another order drift by some percent in bfloat16,
# channels in the wrong order are off by more than all of it.
TOLERANCE = 0.25


@dataclass(frozen=True)
class FeedForward:
    """Hidden channels: the layer that reads them, and those whose outputs they are made of."""

    name: str
    reader: nn.Module
    producers: tuple[nn.Module, ...]

    def reorder_(self, order: Tensor) -> None:
        """Puts channel order[i] into place i."""
        for producer in self.producers:
            rows, bias = weight_of(producer), bias_of(producer)
            rows.copy_(rows[order])
            if bias is not None:
                bias.copy_(bias[order])
        columns = weight_of(self.reader)
        columns.copy_(columns[:, order])


@torch.no_grad()
def permute_(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    rule: PruningRule,
    batches: Sequence[Tensor] = (),
) -> list[str]:
    """Reorders hidden channels in place, so that a pattern keeps more of the layer that reads them.

    What the model computes stays the same but for the order of sums. Networks whose channels turn
    out not to be free are left as they are: each is tried on a few tokens.

    Args:
        model: A model that takes token ids.
        linears: The layers that will be pruned, by name; others are not touched.
        rule: With a pattern.
        batches: Token ids, int64 [samples, length] each, on the model's device, by whose
            activations columns are weighed (Wanda); without them weights count alone.

    Returns:
        Names of the layers whose columns were reordered.

    Raises:
        ValueError: If there is nothing to reorder, or the reordered model computes something else;
            it is then as it was.
    """
    assert rule.pattern is not None
    found = feed_forwards(linears)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no feed-forward network whose hidden channels can be "
            "reordered: its layers are fused, ignored or of another kind. Prune it without permute "
            "(--permute)"
        )
    with evaluating(model):
        norms = _input_norms(model, found, batches)
        probe = _probe(model, batches)
        before, logits = _hidden(model, found, probe)
        orders = {
            each.name: _order(weight_of(each.reader), norms.get(each.name), rule) for each in found
        }
        for each in found:
            each.reorder_(orders[each.name])
        found = _leave_bound(model, found, orders, probe, before)
        after = _hidden(model, found, probe)[1]
        if not _close(after, logits):
            for each in found:
                each.reorder_(orders[each.name].argsort())
            raise ValueError(
                f"{type(model).__name__}: reordering its hidden channels changes what the model "
                "computes. Prune it without permute (--permute)"
            )
    return [each.name for each in found]


def feed_forwards(linears: Mapping[str, nn.Module]) -> list[FeedForward]:
    """Layers that look like feed-forward networks: one that reads wide channels, others make them.

    Args:
        linears: Layers by name, of which those of one module belong together.
    """
    siblings: dict[str, dict[str, nn.Module]] = {}
    for name, linear in linears.items():
        siblings.setdefault(name.rpartition(".")[0], {})[name] = linear
    found = []
    for group in siblings.values():
        name, reader = max(group.items(), key=lambda item: weight_of(item[1]).shape[1])
        out, hidden = weight_of(reader).shape
        producers = tuple(linear for linear in group.values() if linear is not reader)
        alike = all(weight_of(linear).shape == (hidden, out) for linear in producers)
        if producers and alike and hidden > out:
            found.append(FeedForward(name, reader, producers))
    return found


def spread(scores: Tensor, n: int, m: int, rounds: int = ROUNDS) -> Tensor:
    """Finds an order of columns in which windows of m keep more of the scores.

    Columns are dealt to the windows by their sums, the largest first; then pairs of windows
    exchange columns, picked at random, wherever both together keep more afterwards.

    Args:
        scores: float32 [rows, columns], not negative.
        n: Columns that a row keeps of each window.
        m: Columns of a window.
        rounds: How often every window is asked.

    Returns:
        The order, int64 [columns]: the column that comes to each place. Those behind the last whole
        window stay.
    """
    windows = scores.shape[1] // m
    whole = windows * m
    rest = torch.arange(whole, scores.shape[1], device=scores.device)
    if windows < 2 or n == m:
        return torch.arange(scores.shape[1], device=scores.device)
    dealt = scores[:, :whole].sum(0).argsort(descending=True, stable=True)
    order = dealt.view(m, windows).T.contiguous()
    table = scores[:, order]  # [rows, windows, m]

    def kept(part: Tensor) -> Tensor:
        return part.topk(n, dim=-1, sorted=False).values.sum((0, 2), dtype=torch.float64)

    generator = torch.Generator().manual_seed(0)
    sums = kept(table)
    half = windows // 2
    pair = torch.arange(half, device=scores.device)
    for _ in range(rounds):
        a, b = torch.randperm(windows, generator=generator)[: 2 * half].to(pair).view(2, half)
        i, j = torch.randint(m, (2, half), generator=generator).to(pair)
        first, second = table[:, a], table[:, b]
        first[:, pair, i], second[:, pair, j] = table[:, b, j], table[:, a, i]
        now = kept(first), kept(second)
        better = now[0] + now[1] > sums[a] + sums[b]
        a, b, i, j = a[better], b[better], i[better], j[better]
        table[:, a], table[:, b] = first[:, better], second[:, better]
        sums[a], sums[b] = now[0][better], now[1][better]
        order[a, i], order[b, j] = order[b, j], order[a, i]
    return torch.cat([order.flatten(), rest])


def _order(weight: Tensor, norms: Tensor | None, rule: PruningRule) -> Tensor:
    assert rule.pattern is not None
    scores = magnitude_scores(weight) if norms is None else wanda_scores(weight, norms)
    rows = len(scores) // rule.vector_length * rule.vector_length
    if rule.vector_length > 1 and rows:  # rows that choose together count together
        scores = scores[:rows].view(-1, rule.vector_length, scores.shape[1]).sum(1)
    few = max(1, MOST_SCORES // scores.shape[1])
    picked = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))[:few]
    return spread(scores[picked.to(scores.device)], *rule.pattern)


def _input_norms(
    model: nn.Module, found: Sequence[FeedForward], batches: Sequence[Tensor]
) -> dict[str, Tensor]:
    if not batches:
        return {}
    seen = {each.name: InputNorms(each.name, each.reader) for each in found}
    with ExitStack() as stack:
        for each in found:
            add = seen[each.name].add
            hook = each.reader.register_forward_pre_hook(lambda _, args, add=add: add(args[0]))
            stack.callback(hook.remove)
        for batch in batches:
            model(input_ids=batch, use_cache=False)
    return {name: norms.norms() for name, norms in seen.items()}


def _probe(model: PreTrainedModel, batches: Sequence[Tensor]) -> Tensor:
    """A few tokens, to see what the model computes."""
    if batches:
        return batches[0][:1, :PROBE_TOKENS]
    embedding = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    return torch.randint(len(embedding), (1, PROBE_TOKENS), generator=generator).to(
        embedding.device
    )


def _hidden(
    model: nn.Module, found: Sequence[FeedForward], probe: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The hidden channels of each network for the probe, and what the model makes of it."""
    seen: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for each in found:

            def keep(_: nn.Module, args: tuple[Tensor, ...], name: str = each.name) -> None:
                seen[name] = args[0].detach().double()

            stack.callback(each.reader.register_forward_pre_hook(keep).remove)
        result = model(input_ids=probe, use_cache=False)
    return seen, result[0].double()


def _leave_bound(
    model: nn.Module,
    found: list[FeedForward],
    orders: Mapping[str, Tensor],
    probe: Tensor,
    before: Mapping[str, Tensor],
) -> list[FeedForward]:
    """Puts back the networks whose channels are bound, and all others of their kind."""
    while True:
        now = _hidden(model, found, probe)[0]
        bound = next(
            (
                each
                for each in found
                if not _close(now[each.name], before[each.name][..., orders[each.name]])
            ),
            None,
        )
        if bound is None:
            return found
        kind = bound.name.rpartition(".")[2]
        logger.warning("the order of the channels that %s reads matters: not reordered", kind)
        for each in found:
            if each.name.rpartition(".")[2] == kind:
                each.reorder_(orders[each.name].argsort())
        found = [each for each in found if each.name.rpartition(".")[2] != kind]


def _close(a: Tensor, b: Tensor) -> bool:
    finite = a.isfinite() & b.isfinite()
    difference = torch.where(finite, a - b, 0).norm()
    return bool(difference <= TOLERANCE * torch.where(finite, b, 0).norm())
