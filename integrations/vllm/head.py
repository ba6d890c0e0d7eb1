# SPDX-License-Identifier: Apache-2.0
"""A packed output head that is tied to the embedding: one weight in memory serves both.

vLLM asks for the method of the embedding first, whose weight it loads, and then for that of the
head, which it ties: later releases by the method, 0.26 by giving the head the embedding's parameter
`weight`, which here is a placeholder that knows its layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from flashsparse_plugin.formats.rows import read_rows, row_places
from flashsparse_plugin.packed import PackedWeight

from .linear import SparseLinearMethod
from .settings import SettingsError
from .summary import Summary

_PLACES = "row_places"
_OWNER = "flashsparse_owner"


class TiedEmbeddingMethod(SparseLinearMethod):
    """Method of an embedding whose packed weight the output head multiplies by, too."""

    dtype = torch.bfloat16

    def create_weights(self, layer: nn.Module, *sizes: Any, **named: Any) -> None:
        super().create_weights(layer, *sizes, **named)
        self.dtype = layer.params_dtype
        setattr(layer.weight, _OWNER, [layer])  # in a list, so that it is no child

    def _hold(self, layer: nn.Module, packed: PackedWeight, vllm_config: VllmConfig) -> None:
        with self._named(packed, "read row by row, as its embedding does"):
            places = row_places(packed)
        super()._hold(layer, packed, vllm_config)
        layer.register_parameter(_PLACES, Parameter(places, requires_grad=False))

    def embedding(self, layer: nn.Module, ids: Tensor) -> Tensor:
        tensors = {name: getattr(layer, name) for name in self.tensor_names}
        return read_rows(ids, self.held, tensors, getattr(layer, _PLACES)).to(self.dtype)


class TiedHeadMethod(UnquantizedEmbeddingMethod):
    """Method of the head; it has no weight, and multiplies by that of the embedding.

    Args:
        name: Name of the head.
        summary: Where to take note of a head that stays dense.
        asked: Whether the user asks for it now, and not the checkpoint, which may stay dense.
    """

    def __init__(self, name: str, summary: Summary, asked: bool):
        super().__init__()
        self.name, self.summary, self.asked = name, summary, asked
        self.embedding_layer: nn.Module | None = None

    def create_weights(self, layer: nn.Module, *sizes: Any, **named: Any) -> None:
        layer.register_parameter("weight", None)

    def tie_weights(self, layer: nn.Module, embedding: nn.Module) -> nn.Module:
        if isinstance(embedding.quant_method, TiedEmbeddingMethod):
            return embedding
        self._stay_dense(layer, embedding.weight)
        return layer

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        owner = getattr(layer.weight, _OWNER, None)
        if owner is not None:  # vLLM 0.26 gave it the parameter
            self.embedding_layer = owner[0]
            delattr(layer, "weight")
            layer.register_parameter("weight", owner[0].weight)
        elif not isinstance(layer.quant_method, _DenseTiedHead):
            self._stay_dense(layer, layer.weight)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        owner = self.embedding_layer
        assert owner is not None, "loading is through"
        return owner.quant_method.apply(owner, x, bias)

    def _stay_dense(self, layer: nn.Module, weight: Parameter | None) -> None:
        if self.asked or weight is None:
            raise SettingsError(
                f"layer {self.name!r}: head packs the weight of the embedding, to which it is "
                "tied, and this model of vLLM's does not let a plugin pack its embedding. Leave "
                "head out of additional_config"
            )
        self.summary.left_dense(self.name, "tied to an embedding that vLLM keeps dense")
        layer.weight, layer.quant_method = weight, _DenseTiedHead()


class _DenseTiedHead(UnquantizedEmbeddingMethod):
    """vLLM's own method, of a head that was to be packed."""


def refuse_unpacked_head(model: nn.Module, head: str | None) -> None:
    """Raises SettingsError where the user asks for a packed head, and vLLM asked for none.

    Args:
        model: vLLM's model, before its weights are loaded.
        head: What the user asks for: "int8".
    """
    methods = [getattr(module, "quant_method", None) for module in model.modules()]
    if head is None or any(getattr(each, "is_head", False) for each in methods):
        return
    raise SettingsError(
        f"head={head!r}: {type(model).__name__} of vLLM has no output head that a plugin may "
        "pack. Leave head out of additional_config"
    )
