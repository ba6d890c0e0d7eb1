# SPDX-License-Identifier: Apache-2.0
"""Packs the layers of a dense checkpoint while it loads, one dense layer in memory at a time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow.choice import Choice, Pattern, choose
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.formats.values import cast, count_changed
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.modules import is_transposed
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme
from flashsparse_plugin.pruning import prune_weight

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass
class Conversion:
    """What is to be packed, and what came of it.

    Attributes:
        config: How to prune and pack.
        targets: Layer name -> scheme. Where the format is yet to be chosen, only its dtype counts.
        chosen: Of those layers, what was chosen for them.
        offloaded: Layers that will live on disk, or on the CPU while a GPU runs them. These keep
            the storage form; the others go straight into the form that their device reads.
        replaced: The class of each layer in whose place there is a SparseLinear.
        dense_dtype: What layers that are left dense are cast to.
        rounded: Layers whose values changed because the file has more digits than their scheme.
        error: The first failure. transformers would only log it and fill the layer with random
            numbers, so it is kept here and raised when loading is through.
    """

    config: FlashSparseConfig
    targets: dict[str, Scheme] = field(default_factory=dict)
    chosen: dict[str, Choice] = field(default_factory=dict)
    offloaded: set[str] = field(default_factory=set)
    replaced: dict[str, type[nn.Module]] = field(default_factory=dict)
    dense_dtype: torch.dtype | None = None
    rounded: list[str] = field(default_factory=list)
    error: Exception | None = None

    def pack(self, model: PreTrainedModel, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Puts a SparseLinear in the place of the linear layer called `name`.

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
        self.replaced[name] = type(linear)
        if is_transposed(linear):
            weight = weight.T.contiguous()
        if self.config.pruning == "magnitude":
            weight = prune_weight(weight, self.config.sparsity, name=name)
        scheme = self.targets[name]
        if self.config.is_open_for(name):
            choice = self._choose(name, weight, scheme.dtype)
            if choice.scheme is None:
                return self._leave_dense(linear, name, weight)
            scheme = choice.scheme
        if count_changed(weight, scheme.dtype):
            self.rounded.append(name)
        weight = cast(weight, scheme.dtype, f"{name}.weight")
        if name in self.offloaded:
            packed = scheme.format.pack(weight, scheme)
            layer = skeleton(packed)
            layer.bias = linear.bias
            adopt(model, name, layer)
            return {f"{name}.{key}": value for key, value in packed.tensors.items()}
        adopt(model, name, SparseLinear.pack(weight, linear.bias, scheme))
        return {}

    def _choose(self, name: str, weight: Tensor, dtype: torch.dtype) -> Choice:
        target = Target.of(weight.device, dtype, self.config.batch)
        choice = self.chosen[name] = choose(Pattern.of(weight), dtype, target)
        return choice

    def _leave_dense(self, linear: nn.Module, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Puts a weight where transformers would have, in the dtype of the activations."""
        del self.targets[name], self.replaced[name]
        if is_transposed(linear):
            weight = weight.T.contiguous()
        weight = weight.to(self.dense_dtype or weight.dtype)
        if name in self.offloaded:
            return {f"{name}.weight": weight}
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.weight._is_hf_initialized = True
        return {}


def skeleton(packed: PackedWeight, **bias: Any) -> SparseLinear:
    """A layer in its storage form whose tensors, on the meta device, are yet to come."""
    return SparseLinear(
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
            if name not in self.conversion.targets:
                loaded[key] = weight
            elif self.conversion.error is None:
                try:
                    loaded |= self.conversion.pack(model, name, weight)
                except Exception as error:
                    self.conversion.error = error
                else:
                    missing_keys.discard(key)
        return loaded
