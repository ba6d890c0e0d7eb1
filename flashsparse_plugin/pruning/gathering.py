# SPDX-License-Identifier: Apache-2.0
"""Gathers the inputs of layers while a model runs, those of experts by the expert."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from .experts import FEW_TOKENS, ExpertView, by_owner, expert_inputs
from .statistics import Inputs


@contextmanager
def gathering(
    layers: Mapping[str, nn.Module],
    needs: Collection[str],
    weighted: bool = False,
    everyone: bool = False,
) -> Iterator[dict[str, Inputs]]:
    """Gathers what layers multiply in the forward passes of the block.

    Args:
        layers: Linear layers and experts (`ExpertView`), by name.
        needs: Names of the statistics that are wanted; see `Statistics`.
        weighted: Whether the inputs of an expert count by the router's weight of the token
            (MoE-Pruner, arXiv 2410.12013).
        everyone: Whether to send all tokens to each of the experts, whatever the router says.

    Yields:
        The inputs by layer. Gate and up of an expert share theirs.
    """
    seen: dict[str, Inputs] = {}
    hooks = []
    for name, layer in layers.items():
        if not isinstance(layer, ExpertView):
            seen[name] = Inputs(name, layer, needs)
            hooks.append(layer.register_forward_pre_hook(_adder(seen[name])))
    for views in by_owner(layers):
        kinds: dict[tuple[int, bool], Inputs] = {}
        for name, view in views.items():
            key = (view.number, view.is_last)
            if key not in kinds:
                kinds[key] = Inputs(name, view, needs)
            seen[name] = kinds[key]
        owner = next(iter(views.values())).owner
        hook = _splitter(kinds, weighted, everyone)
        hooks.append(owner.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield seen
    finally:
        for each in hooks:
            each.remove()


def starved(layers: Mapping[str, nn.Module], seen: Mapping[str, Inputs]) -> dict[str, int]:
    """The experts that fewer than `FEW_TOKENS` tokens reached, by layer: how many did."""
    return {
        name: tokens
        for name, layer in layers.items()
        if isinstance(layer, ExpertView) and (tokens := seen[name].tokens) < FEW_TOKENS
    }


def _adder(own: Inputs) -> Any:
    return lambda _, args: own.add(args[0])


def _splitter(kinds: Mapping[tuple[int, bool], Inputs], weighted: bool, everyone: bool) -> Any:
    numbers = sorted({number for number, _ in kinds})

    def hook(owner: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        for number, x, inner, chosen in expert_inputs(owner, args, kwargs, numbers, everyone):
            for is_last, own in ((False, x), (True, inner)):
                if (found := kinds.get((number, is_last))) is not None:
                    found.add(own if chosen is None or not weighted else own.float() * chosen)

    return hook
