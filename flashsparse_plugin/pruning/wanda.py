# SPDX-License-Identifier: Apache-2.0
"""Wanda: prune by weight times activation (Sun et al., 2023, arXiv 2306.11695, section 3).

The score of a weight is |W_ij| * ||X_j||_2, with X_j the j-th input feature over all calibration
tokens; scores are compared within a row, that is within an output feature. Decoder layers are
pruned in order, each by the activations of its already pruned predecessors, and only one layer's
activations are in memory at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from tqdm import tqdm

from ..modules import is_linear, weight_of
from ..text import check_window
from .layers import Retained
from .magnitude import magnitude_scores
from .rule import PruningRule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

# A dead input counts as this share of the mean, low enough that its weights are dropped first.
_DEAD_INPUT = 1e-6


def wanda_scores(weight: torch.Tensor, input_norms: torch.Tensor) -> torch.Tensor:
    """Return |W_ij| * ||X_j||_2 as float32, of the weight's shape.

    An input that was zero on every token (norm 0) gets a millionth of the mean norm, so that its
    weights are dropped first, the smallest of them before the others. If all inputs are dead, as in
    an expert that no token reached, the order is that of the magnitudes.

    Args:
        weight: [out_features, in_features], finite.
        input_norms: [in_features], the Euclidean norm of each input over the tokens.

    Raises:
        ValueError: If a norm is NaN, infinite or negative, or the shapes do not match.
    """
    if input_norms.shape != weight.shape[1:]:
        raise ValueError(
            f"{list(input_norms.shape)} input norms for a weight of shape {list(weight.shape)}"
        )
    norms = input_norms.double()
    if not bool((norms.isfinite() & (norms >= 0)).all()):
        raise ValueError("an input norm is NaN, infinite or negative")
    # Only the order matters. With the smallest factor scaled to 1, no score of a weight that is
    # not zero vanishes, so zeros are always dropped first.
    floor = norms.mean() * _DEAD_INPUT
    factors = (norms / floor).clamp(min=1) if floor > 0 else torch.ones_like(norms)
    return magnitude_scores(weight) * factors.float()


class InputNorms:
    """The Euclidean norm of every input feature of one layer, gathered batch by batch.

    Activations that are NaN or infinite (float16 overflows) are left out of the sum, and counted.
    """

    def __init__(self, name: str, linear: nn.Module) -> None:
        self.name = name
        self.seen = 0
        self.broken = 0
        weight = weight_of(linear)
        self.squares = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)

    def add(self, x: torch.Tensor) -> None:
        """Add activations [..., in_features]."""
        x = x.detach().flatten(0, -2)
        self.seen += x.numel()
        squares = x.float().square().sum(dim=0)
        if not bool(squares.isfinite().all()):
            self.broken += x.numel() - int(x.isfinite().sum())
            # double: the square of a large float32 may be infinite.
            squares = x.double().nan_to_num(0.0, 0.0, 0.0).square().sum(dim=0)
        self.squares += squares

    def norms(self) -> torch.Tensor:
        """Return the norms, float64 [in_features].

        Raises:
            ValueError: If no activation was finite.
        """
        if self.broken and self.broken == self.seen:
            raise ValueError(
                f"{self.name}: every calibration activation is NaN or infinite; "
                "load the model in bfloat16 or float32"
            )
        if self.broken:
            logger.warning(
                "%s: %d of %d calibration activations are NaN or infinite and were left out",
                self.name,
                self.broken,
                self.seen,
            )
        if not self.seen:
            logger.warning(
                "%s: no calibration token reached this layer; pruned by magnitude alone", self.name
            )
        return self.squares.sqrt()


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


class _Stop(Exception):
    """Ends a forward pass once the activations that it was run for are recorded."""


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own = module.__dict__.get("forward")  # where accelerate has put its own
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class _Relay:
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

    def run(self, index: int, store: bool = False) -> None:
        """Run every batch through the layer `index` and stop there.

        Args:
            index: The layer; -1 stops before the first, len(layers) runs what follows the last.
            store: Store the outputs of the layer, for the layers after it.
        """
        with ExitStack() as stack:
            for layer in self.layers[: max(index, 0)]:
                stack.enter_context(_replaced_forward(layer, self._hand_over))
            if index < 0:
                hook = self.layers[0].register_forward_pre_hook(self._stop)
                stack.callback(hook.remove)
            elif index < len(self.layers):
                leave = self._store_and_stop if store else self._stop
                stack.callback(self.layers[index].register_forward_hook(leave).remove)
            for batch, tokens in enumerate(self.batches):
                self.batch = batch
                stopped = False
                try:
                    self.model(input_ids=tokens, use_cache=False)
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


@torch.no_grad()
def prune_wanda(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    rule: PruningRule,
    calibration: torch.Tensor,
    batch_size: int,
    progress: bool,
) -> dict[str, Retained]:
    """Prune layers in place by Wanda, decoder layer by decoder layer.

    Linears outside of the decoder layers are pruned at their place in the model: before them (OPT's
    project_in) or after them (lm_head, if requested).

    Args:
        model: A transformers causal LM; its training flag is restored.
        linears: The layers to prune by name, from `prunable_linears`.
        rule: How much to prune, of scope "row" or "layer", or a pattern.
        calibration: int64 [samples, length], token ids.
        batch_size: Samples a forward pass.
        progress: Show a progress bar.

    Returns:
        How much of the scores is left, by layer.

    Raises:
        ValueError: For calibration tokens the model cannot take, or a layer that saw no finite
            activation.
    """
    layers = decoder_layers(model)
    relay = _Relay(model, layers, _batches(model, calibration, batch_size))
    inside = {id(module) for module in layers.modules()}
    outside = {name: linear for name, linear in linears.items() if id(linear) not in inside}

    retained: dict[str, Retained] = {}

    def prune_at(index: int, here: Mapping[str, nn.Module]) -> set[str]:
        """Prune the linears that run on the way to `index`; return the names of those that ran."""
        seen = {name: InputNorms(name, linear) for name, linear in here.items()}
        hooks = [
            linear.register_forward_pre_hook(lambda _, args, norms=seen[name]: norms.add(args[0]))
            for name, linear in here.items()
        ]
        try:
            relay.run(index)
        finally:
            for hook in hooks:
                hook.remove()
        ran = {name for name, norms in seen.items() if norms.seen}
        for name, linear in here.items():
            if name in ran or index >= 0:  # before the decoder layers others may still run
                weight = weight_of(linear)
                scores = wanda_scores(weight, seen.pop(name).norms())
                retained[name] = rule.prune_(weight, scores, "row")
        return ran

    was_training = model.training
    model.eval()
    try:
        if outside:
            before = prune_at(-1, outside)
            outside = {name: lin for name, lin in outside.items() if name not in before}
        for index, layer in enumerate(tqdm(layers, "wanda", unit="layer", disable=not progress)):
            members = {id(module) for module in layer.modules()}
            here = {name: lin for name, lin in linears.items() if id(lin) in members}
            if here:
                prune_at(index, here)
            if outside or index + 1 < len(layers):
                relay.run(index, store=True)
        if outside:
            prune_at(len(layers), outside)
    finally:
        model.train(was_training)
    return retained


def _batches(
    model: PreTrainedModel, calibration: torch.Tensor, batch_size: int
) -> tuple[torch.Tensor, ...]:
    """Check the calibration tokens and cut them into batches on the model's device."""
    if calibration.dim() != 2 or calibration.dtype != torch.int64 or calibration.numel() == 0:
        raise ValueError(
            "calibration must be token ids, int64 [samples, length], "
            f"not {calibration.dtype} of shape {list(calibration.shape)}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, but must be 1 or more")
    check_window(model, calibration.shape[1])
    embedding: Any = model.get_input_embeddings()  # not always an nn.Embedding, but like one
    low, high = int(calibration.min()), int(calibration.max())
    if low < 0 or high >= embedding.num_embeddings:
        raise ValueError(
            f"calibration tokens range from {low} to {high}, but the model knows "
            f"{embedding.num_embeddings}: tokenize with the model's own tokenizer"
        )
    return calibration.to(embedding.weight.device).split(batch_size)
