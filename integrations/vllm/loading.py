# SPDX-License-Identifier: Apache-2.0
"""Fills one layer from a checkpoint and packs it as soon as it is complete.

vLLM hands over what it reads tensor by tensor, each for a layer or for one shard of a merged
layer. Whether the checkpoint is dense or packed, a shard ends as rows of one dense weight in main
memory, placed there by the weight loader of vLLM's own layer, which knows about tensor parallelism,
replicated key and value heads, layers fused on disk and the padding of vocabularies. When the last
shard is there the weight is packed and the dense one let go: one dense layer is in memory at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.packed import WEIGHT_DTYPES, FormatError, PackedWeight

ShardId = Any  # None, "q" "k" "v", a number, or a tuple of numbers: vLLM's names of shards


class LayerLoader:
    """The loading of one layer.

    Args:
        layer: vLLM's layer.
        name: Its full name.
        config: How to prune and pack.
        format: Name of the packed format.
        shape: (out_features, in_features) of this process's part of the layer.
        shards: How many logical layers vLLM merged into it.
        dtype: Of the model's activations.
        place: vLLM's own weight loader of the layer.
        finish: Called with the complete dense weight, on the CPU.

    Attributes:
        placeholders: Empty parameters, to be registered with the layer for loading.
        is_packed: What the checkpoint turned out to be.
    """

    def __init__(
        self,
        layer: nn.Module,
        name: str,
        config: FlashSparseConfig,
        format: str,
        shape: tuple[int, int],
        shards: int,
        dtype: torch.dtype,
        place: Callable[..., None],
        finish: Callable[[Tensor], None],
    ):
        self.layer, self.name, self.config = layer, name, config
        self.format = get_format(format)
        self.shape, self.shards, self.dtype = shape, shards, dtype
        self.place, self.finish = place, finish
        self.weight: Parameter | None = None  # the dense weight that is being filled
        self.is_packed: bool | None = None
        self.missing = set(range(shards))
        self.streams: dict[ShardId, dict[str, Tensor]] = {}  # packed shards not complete yet
        self.placeholders = self._placeholders()

    @property
    def done(self) -> bool:
        return not self.missing

    def _placeholders(self) -> dict[str, Parameter]:
        """Makes empty parameters under every name that the checkpoint may have for the layer."""
        dense = Parameter(torch.empty(0, dtype=self.dtype), requires_grad=False)
        dense.output_dim, dense.input_dim = 0, 1
        dense.weight_loader = self._load_dense
        made = {"weight": dense}
        for name, dtype in self.format.dtypes.items():
            packed = Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
            packed.weight_loader = self._loader_of(name)
            made[name] = packed
        return made

    def require_complete(self) -> None:
        """Raises FormatError unless the checkpoint had everything for this layer."""
        if self.done:
            return
        incomplete = [streams.keys() for streams in self.streams.values()]
        absent = [name for name in self.format.dtypes if any(name not in k for k in incomplete)]
        if absent:
            what = f"the checkpoint lacks its {', '.join(absent)}"
        elif len(self.missing) == self.shards:
            what = "the checkpoint has no weight for it, neither packed nor dense"
        else:
            what = (
                f"the checkpoint has {self.shards - len(self.missing)} of the {self.shards} layers "
            )
            what += "that vLLM merges into it"
        raise FormatError(
            f"layer {self.name!r} {list(self.shape)}: {what}. The checkpoint is incomplete: fetch "
            "it again, or convert the model anew with `flashsparse convert`"
        )

    # What vLLM calls, as `param.weight_loader(param, tensor[, shard_id])`.

    def _load_dense(self, param: Parameter, loaded: Tensor, shard_id: ShardId = None) -> None:
        self._note_kind(is_packed=False)
        expected = _shape_on_disk(self.layer, shard_id)
        if tuple(loaded.shape) != expected:
            raise FormatError(
                f"layer {self._shard(shard_id)}: the checkpoint has a weight of shape "
                f"{list(loaded.shape)}, the model of {list(expected)}. Is it another model's?"
            )
        if self.config.pruning == "magnitude":
            from flashsparse_plugin.pruning import prune_weight

            loaded = prune_weight(loaded, self.config.sparsity, name=self.name)
        self._fill(loaded, self._dtype_for(loaded), shard_id)

    def _loader_of(self, tensor_name: str) -> Callable[..., None]:
        def load(param: Parameter, loaded: Tensor, shard_id: ShardId = None) -> None:
            self._note_kind(is_packed=True)
            if shard_id is None:
                refuse_reordered(self.layer, self.name, self.format.name)
            streams = self.streams.setdefault(shard_id, {})
            streams[tensor_name] = loaded
            if streams.keys() == self.format.dtypes.keys():
                self._fill_from_packed(self.streams.pop(shard_id), shard_id)

        return load

    def _fill_from_packed(self, tensors: dict[str, Tensor], shard_id: ShardId) -> None:
        dtype = getattr(torch, self.config.dtype or "bfloat16")
        shape = _shape_on_disk(self.layer, shard_id)
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        packed = PackedWeight(self.format, tensors, shape, dtype, self.config.options)
        self._fill(packed.validate(self._shard(shard_id)).unpack(), dtype, shard_id)

    def _fill(self, rows: Tensor, dtype: torch.dtype, shard_id: ShardId) -> None:
        """Lets vLLM place its part of the rows into the dense weight; packs after the last."""
        if not self.missing:
            raise FormatError(
                f"layer {self._shard(shard_id)}: the checkpoint has it twice. Fetch it again, or "
                "convert the model anew with `flashsparse convert`"
            )
        if self.weight is None:
            empty = torch.empty(self.shape, dtype=dtype, device="cpu")
            self.weight = Parameter(empty, requires_grad=False)
            self.weight.output_dim, self.weight.input_dim = 0, 1
        self.place(self.weight, rows, *([] if shard_id is None else [shard_id]))
        self.missing -= _indices(shard_id, self.shards)
        if self.done:
            weight, self.weight = self.weight.data, None
            self.finish(weight)

    def _dtype_for(self, loaded: Tensor) -> torch.dtype:
        """Dtype of the values: as configured, else the model's, else the file's, if of 16 bits."""
        configured = getattr(torch, self.config.dtype) if self.config.dtype else None
        candidates = (configured, self.dtype, loaded.dtype)
        return next((d for d in candidates if d in WEIGHT_DTYPES), torch.float32)

    def _note_kind(self, is_packed: bool) -> None:
        if self.is_packed is not None and self.is_packed != is_packed:
            raise FormatError(
                f"layer {self.name!r} merges layers of which the checkpoint has some packed and "
                "some dense. Convert the model anew with `flashsparse convert --pack-all`, or "
                "with all of them in --ignore"
            )
        self.is_packed = is_packed

    def _shard(self, shard_id: ShardId) -> str:
        return repr(self.name) if shard_id is None else f"{self.name!r} (shard {shard_id})"


# Architectures that store q, k and v as one weight, one after the other. All others that store one
# weight interleave the heads, and vLLM reorders the rows of the tensor as it reads it, before it
# reaches any layer: of packed tensors that would make nonsense, and mostly not even an error.
_PLAIN_FUSED_QKV = {"Phi3ForCausalLM", "Phi3VForCausalLM", "Phi4MMForCausalLM"}


def refuse_reordered(layer: nn.Module, name: str, format: str) -> None:
    """Raises FormatError for a packed layer whose rows vLLM's model would reorder."""
    config = get_current_vllm_config_or_none()
    architecture = config.model_config.architecture if config else "this model"
    if isinstance(layer, QKVParallelLinear) and architecture not in _PLAIN_FUSED_QKV:
        raise FormatError(
            f"layer {name!r}: q, k and v are one packed weight, whose rows vLLM's {architecture} "
            "reorders while it loads, and packed rows cannot be. Serve the dense pruned model "
            f"instead: vllm serve DENSE_MODEL --sparse-method {format}"
        )


def _indices(shard_id: ShardId, count: int) -> set[int]:
    """Which of the merged layers a shard is."""
    if shard_id is None:
        return set(range(count))
    if isinstance(shard_id, tuple):
        return set(shard_id)
    return {{"q": 0, "k": 1, "v": 2}.get(shard_id, shard_id)}


def _shape_on_disk(layer: nn.Module, shard_id: ShardId) -> tuple[int, int]:
    """(out_features, in_features) of a shard as the checkpoint holds it, before any slicing."""
    if isinstance(layer, QKVParallelLinear):
        # Its output_sizes count replicated heads as often as they are replicated.
        sizes = [
            layer.total_num_heads * layer.head_size,
            layer.total_num_kv_heads * layer.head_size,
            layer.total_num_kv_heads * getattr(layer, "v_head_size", layer.head_size),
        ]
    elif isinstance(layer, ParallelLMHead):
        return layer.org_vocab_size, layer.embedding_dim
    else:
        sizes = getattr(layer, "output_sizes", [layer.output_size])
    return sum(sizes[i] for i in _indices(shard_id, len(sizes))), layer.input_size
