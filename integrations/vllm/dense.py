# SPDX-License-Identifier: Apache-2.0
"""vLLM's dense layers on a GPU, by the implementation that is fastest for the number of tokens."""

from __future__ import annotations

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from flashsparse_plugin.dataflow import DenseLinear, dense_linear

from .caching import PLANS, count_into_cache_key
from .compat import multiplies_by_torch
from .summary import Summary


class _Dispatched:
    """Mixin for vLLM's methods for dense weights; uses a faster implementation if there is one.

    Args:
        name: Name of the layer.
        summary: Takes a note of the implementation.
        vllm_config: Configuration of the engine.
        plain: Always use vLLM's own implementation, as a baseline for measurements.
    """

    def __init__(self, name: str, summary: Summary, vllm_config: VllmConfig, plain: bool = False):
        super().__init__()
        self.name, self.summary, self.vllm_config = name, summary, vllm_config
        self.plain = plain
        self.linear: DenseLinear | None = None

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        if not self.plain and multiplies_by_torch(self):
            self.linear = dense_linear(layer.weight)
        if self.linear is not None:
            self.summary.dispatched(self.name, tuple(layer.weight.shape), self.linear)
            thresholds = [self.linear.gemv_tokens, self.linear.flat_tokens]
            count_into_cache_key(self.vllm_config, PLANS, self.name, thresholds)
        super().process_weights_after_loading(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.linear is None:
            return super().apply(layer, x, bias)
        return self.linear(x, layer.weight, bias)


class DenseLinearMethod(_Dispatched, UnquantizedLinearMethod):
    """Method for a dense linear layer."""


class DenseHeadMethod(_Dispatched, UnquantizedEmbeddingMethod):
    """Method for a dense output head, tied to the embedding or not."""
