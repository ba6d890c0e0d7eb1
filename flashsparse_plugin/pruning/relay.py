# SPDX-License-Identifier: Apache-2.0
"""Running a model decoder layer by decoder layer, with one layer's activations in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..modules import is_linear
from .experts import owner_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the decoder layers: the `nn.ModuleList` that holds the most linears.

    Raises:
        ValueError: If the model has no `nn.ModuleList` with a linear in it.
    """

    def linears(module: nn.Module) -> int:
        return sum(is_linear(child) for child in module.modules())

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    best = max(lists, key=linears, default=None)  # among equals the outermost, which comes first
    if best is None or linears(best) == 0:
        raise ValueError(f"{type(model).__name__} has no nn.ModuleList of decoder layers")
    return best


def inside(module: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Those of some layers, experts among them, that are in a module."""
    members = {id(each) for each in module.modules()}
    return {name: layer for name, layer in layers.items() if id(owner_of(layer)) in members}


def by_decoder_layer(model: nn.Module, linears: Mapping[str, nn.Module]) -> list[list[str]]:
    """Groups the names of linears by the decoder layer that they are in.

    Those outside of the decoder layers are left out, and layers with none of them too.

    Raises:
        ValueError: If no linear is in a decoder layer.
    """
    groups = []
    for layer in decoder_layers(model):
        groups.append([*inside(layer, linears)])
    groups = [group for group in groups if group]
    if not groups:
        raise ValueError(f"{type(model).__name__}: none of the layers is in a decoder layer")
    return groups


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class _Stop(Exception):
    """Ends a forward pass once the activations that it was run for are recorded."""


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Puts another forward in the place of a module's own for a while."""
    own = module.__dict__.get("forward")  # where accelerate has put its own
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class Relay:
    """Runs a model up to one decoder layer, whose predecessors return stored outputs.

    The model itself prepares the inputs of a layer (masks, rotary embeddings and all that differs
    from layer to layer), so this class knows no architecture, and the layers before cost nothing.
    One output per batch is stored: that of the last layer run with `store`.
    """

    def __init__(
        self, model: PreTrainedModel, layers: nn.ModuleList, batches: Sequence[torch.Tensor]
    ) -> None:
        self.model, self.layers, self.batches = model, layers, batches
        self.outputs: list[Any] = [None] * len(batches)
        self.batch = 0

    def run(self, index: int, store: bool = False, only: Iterable[int] | None = None) -> None:
        """Run batches through the layer `index` and stop there.

        Args:
            index: The layer; -1 stops before the first, len(layers) runs what follows the last.
            store: Store the outputs of the layer, for the layers after it.
            only: The batches to run, by number; None for all.
        """
        with ExitStack() as stack:
            for layer in self.layers[: max(index, 0)]:
                stack.enter_context(replaced_forward(layer, self._hand_over))
            if index < 0:
                hook = self.layers[0].register_forward_pre_hook(self._stop)
                stack.callback(hook.remove)
            elif index < len(self.layers):
                leave = self._store_and_stop if store else self._stop
                stack.callback(self.layers[index].register_forward_hook(leave).remove)
            for batch in range(len(self.batches)) if only is None else only:
                self.batch = batch
                stopped = False
                try:
                    self.model(input_ids=self.batches[batch], use_cache=False)
                except _Stop:
                    stopped = True
                if not stopped and index < len(self.layers):
                    raise RuntimeError(
                        f"{type(self.model).__name__} does not run its decoder layer {index}"
                    )

    def _hand_over(self, *_: Any, **__: Any) -> Any:
        return self.outputs[self.batch]

    def _stop(self, *_: Any) -> None:
        raise _Stop

    def _store_and_stop(self, _layer: nn.Module, _args: Any, output: Any) -> None:
        self.outputs[self.batch] = output
        raise _Stop
