# SPDX-License-Identifier: Apache-2.0
"""A vLLM linear layer on a packed weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import LinearMethodBase

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow import sparse_tokens
from flashsparse_plugin.formats import format_names, get_format
from flashsparse_plugin.packed import WEIGHT_DTYPES, Format, FormatError, PackedWeight

from .caching import LENGTHS, THRESHOLDS, count_into_cache_key
from .dense import DenseLinearMethod
from .loading import LayerLoader
from .summary import Summary

# Packed streams are padded to an odd multiple of half this share of the weight's elements.
# torch.compile has the lengths of parameters in its graphs: with exact lengths no two layers would
# share one. Densities are mostly whole percents, give or take: a bucket ends between two of them.
_BUCKET = 0.01


class SparseLinearMethod(LinearMethodBase):
    """How vLLM creates, loads and runs one layer; an instance of its own for each.

    Args:
        config: How to prune and pack.
        format: Name of the layer's format.
        name: Of the layer.
        summary: Where to take note of what became of it.
        auto: Leave the layer dense where that is smaller.
    """

    def __init__(
        self,
        config: FlashSparseConfig,
        format: str,
        name: str,
        summary: Summary,
        auto: bool = False,
    ):
        self.config, self.format, self.name = config, format, name
        self.summary, self.auto = summary, auto
        self.loader: LayerLoader | None = None
        self.form: Format | None = None  # that of the tensors, once they are there
        self.shape: tuple[int, int] | None = None
        self.weight_dtype: torch.dtype | None = None
        self.sparse_tokens: int | None = None  # that are multiplied by the packed weight as it is
        summary.expected += 1

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        *,
        weight_loader: Any,
        **extra: Any,
    ) -> None:
        device = torch.empty(0).device  # vLLM creates a model under the device it will run on
        vllm_config = get_current_vllm_config()

        def finish(weight: Tensor) -> None:
            self._finish(layer, weight, params_dtype, device, vllm_config)

        self.loader = LayerLoader(
            layer,
            self.name,
            self.config,
            self.format,
            (sum(output_partition_sizes), input_size_per_partition),
            len(output_partition_sizes),
            params_dtype,
            weight_loader,
            finish,
        )
        for name, placeholder in self.loader.placeholders.items():
            layer.register_parameter(name, placeholder)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Is called when the whole checkpoint was read (and by some loaders more than once)."""
        if self.loader is None:
            return
        self.loader.require_complete()
        self.loader = None
        self.summary.finish_layer()

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        tensors = {name: getattr(layer, name) for name in self.form.tensor_names}
        return self.form.linear(
            x, tensors, self.shape[0], self.weight_dtype, bias, self.sparse_tokens
        )

    # The complete weight.

    def _finish(
        self,
        layer: nn.Module,
        weight: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        vllm_config: VllmConfig,
    ) -> None:
        """Packs a weight [out_features, in_features], or leaves the layer dense after all."""
        for name in self.loader.placeholders:
            delattr(layer, name)
        if self.config.dequantize:
            self.summary.left_dense(self.name, "unpacked, as --sparse-method none asks")
        else:
            packed = self._pack(self._round(weight), device)
            if not self.auto or packed.nbytes < packed.dense_nbytes:
                self._hold(layer, packed, vllm_config)
                return
            self.summary.left_dense(self.name, "not sparse enough to gain from packing")
        dense = Parameter(weight.to(device=device, dtype=dtype), requires_grad=False)
        layer.register_parameter("weight", dense)
        layer.quant_method = _DenseAfterAll(
            self.name, self.summary, vllm_config, plain=self.config.dequantize
        )

    def _hold(self, layer: nn.Module, packed: PackedWeight, vllm_config: VllmConfig) -> None:
        flow = sparse_tokens(packed)
        self.summary.add(self.name, packed, flow)
        self.form, self.shape, self.weight_dtype = packed.format, packed.shape, packed.dtype
        for name, tensor in _padded(packed).items():
            layer.register_parameter(name, Parameter(tensor, requires_grad=False))
        if self.form.stream is not None:
            length = len(getattr(layer, self.form.stream))
            count_into_cache_key(vllm_config, LENGTHS, self.name, length)
        if flow is not None:
            self.sparse_tokens = flow.most
            count_into_cache_key(vllm_config, THRESHOLDS, self.name, [flow.most])
        if not hasattr(layer, "weight_packed"):
            # vLLM's LoRA looks for a parameter of this name to learn the device.
            layer.register_parameter("weight_packed", getattr(layer, self.form.tensor_names[0]))

    def _round(self, weight: Tensor) -> Tensor:
        if weight.dtype in WEIGHT_DTYPES:
            return weight
        rounded = weight.to(torch.bfloat16)
        if not torch.equal(rounded.to(weight.dtype), weight):
            self.summary.rounded.append(self.name)
        return rounded

    def _pack(self, weight: Tensor, device: torch.device) -> PackedWeight:
        """Packs on `device`, straight into the form that its kernels read."""
        weight = weight.to(device)
        names = (self.format,)
        if self.auto and not self.loader.is_packed:
            names = format_names()
        made, error = [], None
        for name in names:
            try:
                made.append(get_format(name).runtime(device).pack(weight, **self.config.options))
            except (FormatError, TypeError, RuntimeError) as e:
                error = e  # N:M formats do not take every weight, nor do they work without options
        if not made:
            raise FormatError(
                f"layer {self.name!r} {list(weight.shape)} cannot be packed as {self.format}: "
                f"{str(error).splitlines()[0]}"
            )
        return min(made, key=lambda packed: packed.nbytes).to(device)


class _DenseAfterAll(DenseLinearMethod):
    """Runs a layer whose weight, once it was there, turned out to be better off dense."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        super().process_weights_after_loading(layer)
        self.summary.finish_layer()


def _padded(packed: PackedWeight) -> dict[str, Tensor]:
    """The tensors of a weight, with its stream padded to a bucket; kernels go by the offsets."""
    tensors = dict(packed.tensors)
    stream = packed.format.stream
    if stream is not None:
        bucket = max(2, int(_BUCKET * packed.shape[0] * packed.shape[1]))
        padding = (bucket // 2 - len(tensors[stream])) % bucket
        tensors[stream] = F.pad(tensors[stream], (0, padding))
    return tensors
