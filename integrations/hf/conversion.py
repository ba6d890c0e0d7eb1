# SPDX-License-Identifier: Apache-2.0
"""Packs the layers of a dense checkpoint while it loads.

One dense layer is in memory at a time; where formats are chosen by the weights, those that engines
merge.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps

from flashsparse_plugin.checkpoint.read.head import Head
from flashsparse_plugin.checkpoint.read.shapes import merged_names
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow.choice import Choice, Pattern, choose
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.embedding import SparseEmbedding, TiedHead
from flashsparse_plugin.formats.values.dtypes import count_changed, fitted
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.modules import is_transposed, shape_of
from flashsparse_plugin.packed import (
    FormatError,
    PackedWeight,
    Scheme,
    reason_of_exceptions,
)
from flashsparse_plugin.pruning import prune_for

from .experts import PackingExperts

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass
class Conversion:
    """What is to be packed, and what came of it.

    Attributes:
        config: How to prune and pack.
        targets: Layer name -> scheme. Where the format is yet to be chosen, only its dtype counts.
        merged: Of those whose format is yet to be chosen, by each the layers that engines merge
            with it, itself among them: one format is chosen for them all.
        waiting: Weights of such layers, until those of the others are there.
        chosen: Of those layers, what was chosen for them.
        offloaded: Layers that will live on disk, or on the CPU while a GPU runs them. These keep
            the storage form; the others go straight into the form that their device reads.
        replaced: The class of each layer in whose place there is a SparseLinear.
        head: The output head, where it is packed by a rule of its own.
        dense_dtype: What layers that are left dense are cast to.
        rounded: Layers whose values changed because the file has more digits than their scheme.
        experts: The experts of a mixture, which are packed together.
        error: The first failure. transformers would only log it and fill the layer with random
            numbers, so it is kept here and raised when loading is through.
    """

    config: FlashSparseConfig
    targets: dict[str, Scheme] = field(default_factory=dict)
    merged: dict[str, list[str]] = field(default_factory=dict)
    waiting: dict[str, Tensor] = field(default_factory=dict)
    chosen: dict[str, Choice] = field(default_factory=dict)
    offloaded: set[str] = field(default_factory=set)
    replaced: dict[str, type[nn.Module]] = field(default_factory=dict)
    head: Head | None = None
    dense_dtype: torch.dtype | None = None
    rounded: list[str] = field(default_factory=list)
    error: Exception | None = None
    experts: PackingExperts = field(init=False)

    def __post_init__(self) -> None:
        self.experts = PackingExperts(self.config)

    def pack(self, model: PreTrainedModel, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Puts a SparseLinear in the place of the linear layer called `name`.

        Where its format is yet to be chosen, once the weights of all layers are there that engines
        merge with it; then all of them are packed.

        Returns:
            The tensors that transformers has to place, by their full names: those of an offloaded
            layer. The tensors of any other layer are in the module already.
        """
        linear = model.get_submodule(name)
        if weight.shape != linear.weight.shape:
            raise FormatError(
                f"layer {name!r}: the checkpoint has a weight of shape {list(weight.shape)}, the "
                f"model of {list(linear.weight.shape)}. Is it another model's?"
            )
        if is_transposed(linear):
            weight = weight.T.contiguous()
        if self.config.pruning == "magnitude":
            weight = prune_for(weight, self.targets[name], self.config.sparsity, name)
        if self._is_head(name) or not self.config.is_open_for(name):
            return self._pack(model, name, weight, self.targets[name])
        self.waiting[name] = weight
        names = self.merged.get(name, [name])
        return self._choose(model, names) if self.waiting.keys() >= set(names) else {}

    def _is_head(self, name: str) -> bool:
        """Whether a weight is the head's that keeps every value."""
        return self.head is not None and name == self.head.owner

    def merge(self, present: Container[str]) -> None:
        """Notes which of the layers whose format is open engines merge.

        Args:
            present: Names of the weights that will come.
        """
        names = [
            name
            for name in self.targets
            if self.config.is_open_for(name)
            and not self._is_head(name)
            and f"{name}.weight" in present
        ]
        self.merged = {name: group for group in merged_names(names) for name in group}

    def _choose(self, model: PreTrainedModel, names: Sequence[str]) -> dict[str, Tensor]:
        """Chooses one format for layers that engines merge, and packs them or leaves them dense."""
        weights = {name: self.waiting.pop(name) for name in names}
        device, dtype = weights[names[0]].device, self.targets[names[0]].dtype
        target = Target.of(device, dtype, self.config.batch)
        patterns = [Pattern.of(weight) for weight in weights.values()]
        choice = choose(Pattern.joined(patterns), dtype, target)
        loaded: dict[str, Tensor] = {}
        for name, weight in weights.items():
            self.chosen[name] = choice
            if choice.scheme is None:
                loaded |= self._leave_dense(model.get_submodule(name), name, weight)
            else:
                loaded |= self._pack(model, name, weight, choice.scheme)
        return loaded

    def _pack(
        self, model: PreTrainedModel, name: str, weight: Tensor, scheme: Scheme
    ) -> dict[str, Tensor]:
        try:
            return self._pack_as(model, name, weight, scheme)
        except FormatError as error:
            if repr(name) in str(error):
                raise
            raise FormatError(f"layer {name!r} {list(weight.shape)}: {error}") from None

    def _pack_as(
        self, model: PreTrainedModel, name: str, weight: Tensor, scheme: Scheme
    ) -> dict[str, Tensor]:
        linear = model.get_submodule(name)
        if count_changed(weight, scheme.dtype):
            self.rounded.append(name)
        weight = fitted(weight, scheme, f"{name}.weight")
        listed = None if self._is_head(name) else scheme.format.exceptions_in(weight)
        if reason := reason_of_exceptions(listed, weight.numel()):
            logger.warning("layer %r %s stays dense: %s", name, list(weight.shape), reason)
            return self._leave_dense(linear, name, weight)
        self.replaced[name] = type(linear)
        if self.head is not None and name == self.head.embedding:
            self._pack_tied(model, self.head, weight, scheme)
            return {}
        if name in self.offloaded:
            packed = scheme.format.pack(weight, scheme)
            layer = skeleton(packed)
            layer.bias = linear.bias
            adopt(model, name, layer)
            return {f"{name}.{key}": value for key, value in packed.tensors.items()}
        adopt(model, name, SparseLinear.pack(weight, linear.bias, scheme))
        return {}

    def _pack_tied(
        self, model: PreTrainedModel, head: Head, weight: Tensor, scheme: Scheme
    ) -> None:
        if head.owner in self.offloaded:
            refuse_offloaded(head)
        tie_packed(model, head, SparseEmbedding.pack(weight, None, scheme))

    def _leave_dense(self, linear: nn.Module, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Puts a weight where transformers would have, in the dtype of the activations."""
        del self.targets[name]
        if is_transposed(linear):
            weight = weight.T.contiguous()
        weight = weight.to(self.dense_dtype or weight.dtype)
        if name in self.offloaded:
            return {f"{name}.weight": weight}
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.weight._is_hf_initialized = True
        return {}


def skeleton(
    packed: PackedWeight, kind: type[SparseLinear] = SparseLinear, **bias: Any
) -> SparseLinear:
    """A layer in its storage form whose tensors, on the meta device, are yet to come."""
    return kind(
        packed.shape[1],
        packed.shape[0],
        packed.scheme,
        sizes={name: tuple(tensor.shape) for name, tensor in packed.tensors.items()},
        **bias,
    )


def adopt(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Puts `layer` into the model so that transformers never initialises it."""
    layer._is_hf_initialized = True
    for parameter in layer.parameters(recurse=False):
        if parameter.device.type != "meta":
            parameter._is_hf_initialized = True
    model.set_submodule(name, layer)


def refuse_offloaded(head: Head) -> NoReturn:
    """Raises FormatError for a head whose weight is not where it runs."""
    raise FormatError(
        f"layer {head.owner!r} is offloaded, and the output head {head.name!r}, packed while it "
        "loads, must be where it runs. Remedy: a device_map that keeps it on one device, leave "
        "head out, or pack it first with `flashsparse convert --head`"
    )


def untie(model: PreTrainedModel, head: Head) -> None:
    """Puts a TiedHead in the place of a head, which is to share a packed weight with an embedding.

    transformers is told that the two are not tied, since it would tie parameters.
    """
    linear = model.get_submodule(head.name)
    rows, columns = shape_of(linear)
    adopt(model, head.name, TiedHead(columns, rows, linear.bias))
    model.all_tied_weights_keys.pop(f"{head.name}.weight")
    model._tied_weights_keys = {}  # of this object; save_pretrained and tie_weights read it


def tie_packed(model: PreTrainedModel, head: Head, embedding: SparseLinear) -> None:
    """Puts a packed embedding in the place of the dense one, for an untied head to share."""
    made = model.get_submodule(head.name)
    assert isinstance(made, TiedHead) and isinstance(embedding, SparseEmbedding)
    made.tie(embedding)
    adopt(model, head.owner, embedding)


def tie_dense(model: PreTrainedModel, head: Head) -> None:
    """Ties a dense head to its dense embedding again, in the place of packed ones."""
    made, embedding = model.get_submodule(head.name), model.get_submodule(head.owner)
    assert isinstance(made, TiedHead) and isinstance(embedding, nn.Embedding)
    adopt(model, head.name, made.to_linear(embedding.weight))
    del model._tied_weights_keys  # those of the class count again
    model.all_tied_weights_keys[f"{head.name}.weight"] = f"{head.owner}.weight"


class PruneAndPack(ConversionOps):
    """The step that transformers runs on each weight that `param_needs_quantization` names."""

    def __init__(self, conversion: Conversion):
        self.conversion = conversion

    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        model: PreTrainedModel | None = None,
        missing_keys: set[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        loaded = {}
        for key, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            name = key.removesuffix(".weight")
            experts = self.conversion.experts
            if name not in self.conversion.targets and key not in experts.targets:
                loaded[key] = weight
            else:
                missing_keys.discard(key)  # or transformers would report it beside an error of ours
                if self.conversion.error is not None:
                    continue
                try:
                    if key in experts.targets:
                        dtype = self.conversion.dense_dtype
                        loaded |= experts.pack(model, key, weight, dtype)
                    else:
                        loaded |= self.conversion.pack(model, name, weight)
                except Exception as error:
                    self.conversion.error = error
        return loaded
