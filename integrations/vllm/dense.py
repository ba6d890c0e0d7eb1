# SPDX-License-Identifier: Apache-2.0
"""vLLM's layers that stay dense, on a GPU: by the implementation that is best for the tokens."""

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
    """Mixed into a method of vLLM's for dense weights, which it leaves as it is where nothing else
    multiplies faster.

    Args:
        name: Of the layer.
        summary: Where to take note of what became of it.
        vllm_config: Of the engine.
        plain: Leave the layer as it is in any case: to measure against.
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
    """A linear layer."""


class DenseHeadMethod(_Dispatched, UnquantizedEmbeddingMethod):
    """The output head, tied to the embedding or not."""
