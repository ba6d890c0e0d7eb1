# SPDX-License-Identifier: Apache-2.0
"""A vLLM linear layer on a packed weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import LinearMethodBase

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow import plan_of
from flashsparse_plugin.dataflow.choice import Pattern, choose
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme, reason_of_exceptions
from flashsparse_plugin.plan import Plan

from .caching import LENGTHS, PLANS, SCHEMES, count_into_cache_key
from .dense import DenseLinearMethod
from .loading import LayerLoader
from .settings import DUMMY
from .summary import Summary, kind_of


class SparseLinearMethod(LinearMethodBase):
    """How vLLM creates, loads and runs one layer; an instance of its own for each.

    Args:
        config: How to prune and pack.
        names: Names by which the configuration may know the layer. A layer that vLLM merges has
            those of its parts, which have one scheme.
        name: The name of vLLM's layer.
        summary: Where to take note of what became of it.
        beside: Other layers of the checkpoint are packed: where it has this one dense, it is packed
            only if that is smaller.
        is_head: Whether it is the output head, or the embedding that shares its weight.
    """

    def __init__(
        self,
        config: FlashSparseConfig,
        names: list[str],
        name: str,
        summary: Summary,
        beside: bool = False,
        is_head: bool = False,
    ):
        self.config, self.names, self.name = config, names, name
        self.summary, self.beside, self.is_head = summary, beside, is_head
        self.loader: LayerLoader | None = None
        self.load_format = ""
        self.held: Scheme | None = None  # of the tensors, once they are there
        self.tensor_names: tuple[str, ...] = ()
        self.shape: tuple[int, int] = (0, 0)
        self.plan: Plan | None = None
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
        self.load_format = vllm_config.load_config.load_format

        def finish(weight: Tensor | PackedWeight) -> None:
            self._finish(layer, weight, params_dtype, device, vllm_config)

        self.loader = LayerLoader(
            layer,
            self.name,
            self.config,
            lambda *dtypes: self.config.scheme_of(self.names[0], dtypes=dtypes),
            (sum(output_partition_sizes), input_size_per_partition),
            len(output_partition_sizes),
            params_dtype,
            device,
            weight_loader,
            finish,
        )
        for name, placeholder in self.loader.placeholders.items():
            layer.register_parameter(name, placeholder)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Is called when the whole checkpoint was read (and by some loaders more than once)."""
        if self.loader is None:
            return
        if self.load_format == DUMMY:
            self.loader.make_up()
        self.loader.require_complete()
        self.loader = None
        self.summary.finish_layer()

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        tensors = {name: getattr(layer, name) for name in self.tensor_names}
        return self.held.format.linear(x, self.held, self.shape, tensors, bias, self.plan)

    # The complete weight.

    def _finish(
        self,
        layer: nn.Module,
        weight: Tensor | PackedWeight,
        dtype: torch.dtype,
        device: torch.device,
        vllm_config: VllmConfig,
    ) -> None:
        """Holds a weight packed, or leaves the layer dense after all.

        Args:
            layer: vLLM's layer.
            weight: [out_features, in_features], dense in main memory, or packed on `device`.
            dtype: Dtype of the model's activations.
            device: Where the layer runs.
            vllm_config: The configuration of the engine.
        """
        for name in self.loader.placeholders:
            delattr(layer, name)
        if self.loader.rounded:
            self.summary.rounded.append(self.name)
        packed = self._packed(weight, device, vllm_config)
        if packed is not None:
            self._hold(layer, packed, vllm_config)
            return
        unpacked = weight.unpack() if isinstance(weight, PackedWeight) else weight
        dense = Parameter(unpacked.to(device=device, dtype=dtype), requires_grad=False)
        layer.register_parameter("weight", dense)
        layer.quant_method = _DenseAfterAll(
            self.name, self.summary, vllm_config, plain=self.config.dequantize
        )

    def _hold(self, layer: nn.Module, packed: PackedWeight, vllm_config: VllmConfig) -> None:
        self.plan = plan_of(packed)
        self.summary.add(self.name, packed, self.plan)
        self.held, self.shape, self.tensor_names = packed.scheme, packed.shape, (*packed.tensors,)
        for name, tensor in _padded(packed).items():
            layer.register_parameter(name, Parameter(tensor, requires_grad=False))
        for name, spec in self.held.format.tensors(self.held, self.shape).items():
            if None in spec.shape:
                size = getattr(layer, name).shape[spec.shape.index(None)]
                count_into_cache_key(vllm_config, LENGTHS, f"{self.name}.{name}", size)
        if self.plan is not None:
            ranges = [list(each) for each in self.plan.ranges]
            count_into_cache_key(vllm_config, PLANS, self.name, ranges)
        if self.is_head:
            # vLLM's LoRA asks heads and embeddings for the dtype and the device of this one.
            weight = torch.empty(0, self.shape[1], dtype=layer.params_dtype, device=packed.device)
            layer.register_parameter("weight", Parameter(weight, requires_grad=False))
        if not hasattr(layer, "weight_packed"):
            # vLLM's LoRA looks for a parameter of this name to learn the device.
            layer.register_parameter("weight_packed", getattr(layer, self.tensor_names[0]))

    def _packed(
        self, weight: Tensor | PackedWeight, device: torch.device, vllm_config: VllmConfig
    ) -> PackedWeight | None:
        """The weight in the form that the kernels of its device read; None to leave it dense."""
        if self.config.dequantize:
            self.summary.left_dense(self.name, "unpacked, as --sparse-method none asks")
            return None
        if isinstance(weight, PackedWeight):
            with self._named(weight, f"held as {weight.scheme} asks"):
                return weight.prepare(device)
        scheme, weight = self.loader.scheme, weight.to(device)
        if self.config.is_open_for(*self.names):
            target = Target.of(device, weight.dtype, self.config.batch)
            choice = choose(Pattern.of(weight), weight.dtype, target)
            self.summary.chosen.append((kind_of(self.name), choice))
            count_into_cache_key(vllm_config, SCHEMES, self.name, choice.title)
            if choice.scheme is None:
                self.summary.left_dense(self.name, "as packing does not pay")
                return None
            scheme = choice.scheme
        listed = None if self.is_head else scheme.format.exceptions_in(weight)
        if reason := reason_of_exceptions(listed, weight.numel()):
            self.summary.left_dense(self.name, reason)
            return None
        packed = self._pack(weight, scheme)
        if self.beside and packed.nbytes >= packed.dense_nbytes:
            self.summary.left_dense(self.name, "not sparse enough to gain from packing")
            return None
        return packed

    def _pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        """Packs a dense weight where it is, straight into the form that kernels there read."""
        with self._named(weight, f"packed as {scheme}"):
            return scheme.format.pack_prepared(weight, scheme)

    @contextmanager
    def _named(self, weight: Tensor | PackedWeight, what: str) -> Iterator[None]:
        """Has a FormatError name the layer."""
        try:
            yield
        except FormatError as error:
            where = f"layer {self.name!r} {list(weight.shape)}"
            raise FormatError(f"{where} cannot be {what}: {error}") from None


class _DenseAfterAll(DenseLinearMethod):
    """Runs a layer whose weight, once it was there, turned out to be better off dense."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        super().process_weights_after_loading(layer)
        self.summary.finish_layer()


def _padded(packed: PackedWeight) -> dict[str, Tensor]:
    """The tensors of a weight, its streams padded to an odd number of half buckets.

    torch.compile has the lengths of parameters in its graphs: with exact lengths no two layers
    would share one. Kernels go by the offsets.
    """
    tensors = dict(packed.tensors)
    for name, spec in packed.format.tensors(packed.scheme, packed.shape).items():
        if spec.shape[0] is None:
            line = math.prod(spec.shape[1:])  # a stream of lines is padded by whole ones
            bucket = max(2, int(packed.format.bucket * packed.shape[0] * packed.shape[1]) // line)
            padding = (bucket // 2 - len(tensors[name])) % bucket
            tensors[name] = F.pad(tensors[name], (*(0, 0) * (len(spec.shape) - 1), 0, padding))
    return tensors
