# SPDX-License-Identifier: Apache-2.0
"""Fills one layer from a checkpoint, which is dense or packed.

vLLM hands over what it reads tensor by tensor, each for a layer or for one shard of a merged
layer. The weight loader of vLLM's own layer knows which rows and columns of it belong to this
process: about tensor parallelism, replicated key and value heads, layers fused on disk and the
padding of vocabularies. It is asked in two ways:

- Of a dense checkpoint it places the rows themselves into one dense weight in main memory. When the
  last shard is there the weight is packed and the dense one let go.
- Of a packed checkpoint it places the numbers of the rows. What it took is cut out of the packed
  shards and joined, by the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats.values.dtypes import count_changed, fitted
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme

ShardId = Any  # None, "q" "k" "v", a number, or a tuple of numbers: vLLM's names of shards


class LayerLoader:
    """The loading of one layer.

    Args:
        layer: vLLM's layer.
        name: The full name of the layer.
        config: How to prune and pack.
        scheme_of: The layer's scheme; takes dtypes to pack in, in order of preference.
        shape: (out_features, in_features) of this process's part of the layer.
        shards: How many logical layers vLLM merged into it.
        dtype: Dtype of the model's activations.
        device: Where the layer will run.
        place: vLLM's own weight loader of the layer.
        finish: Called with the complete weight, dense on the CPU, or packed on `device`.

    Attributes:
        placeholders: Empty parameters, to be registered with the layer for loading.
        rounded: Whether values were changed to pack them.
    """

    def __init__(
        self,
        layer: nn.Module,
        name: str,
        config: FlashSparseConfig,
        scheme_of: Callable[..., Scheme],
        shape: tuple[int, int],
        shards: int,
        dtype: torch.dtype,
        device: torch.device,
        place: Callable[..., None],
        finish: Callable[[Tensor | PackedWeight], None],
    ):
        self.layer, self.name, self.config, self.scheme_of = layer, name, config, scheme_of
        self.scheme = scheme_of(dtype)
        self.shape, self.shards, self.dtype, self.device = shape, shards, dtype, device
        self.place, self.finish = place, finish
        self.rounded = False
        self.missing = set(range(shards))
        self.is_packed: bool | None = None  # what the checkpoint turned out to be
        self.weight: Parameter | None = None  # of a dense checkpoint: the weight being filled
        self.streams: dict[ShardId, dict[str, Tensor]] = {}  # packed shards not complete yet
        self.parts: list[tuple[int, PackedWeight]] = []  # packed parts and their first rows
        self.placeholders = self._placeholders()

    @property
    def done(self) -> bool:
        return not self.missing

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the packed tensors."""
        return tuple(self.scheme.format.tensors(self.scheme, self.shape))

    def _placeholders(self) -> dict[str, Parameter]:
        """Makes empty parameters under every name that the checkpoint may have for the layer."""
        dense = _parameter(torch.empty(0, dtype=self.dtype))
        dense.weight_loader = self._load_dense
        made = {"weight": dense}
        for name, spec in self.scheme.format.tensors(self.scheme, self.shape).items():
            made[name] = Parameter(torch.empty(0, dtype=spec.dtype), requires_grad=False)
            made[name].weight_loader = self._loader_of(name)
        return made

    def require_complete(self) -> None:
        """Raises FormatError unless the checkpoint had everything for this layer."""
        if self.done:
            return
        incomplete = [streams.keys() for streams in self.streams.values()]
        absent = [name for name in self.names if any(name not in k for k in incomplete)]
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
            "it again, or convert the model again with `flashsparse convert`"
        )

    def make_up(self) -> None:
        """Fills the layer with random numbers and zeros, where no weights are read."""
        sparsity = self.config.sparsity
        assert sparsity is not None  # refused before
        self.scheme = self.scheme_of(self.dtype)
        weight = made_up(self.shape, self.scheme, sparsity, self.device)
        self.missing.clear()
        self.finish(weight)

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
            from flashsparse_plugin.pruning import prune_for

            loaded = prune_for(loaded, self.scheme, self.config.sparsity, self.name)
        self._require_missing(shard_id)
        if self.weight is None:
            self.scheme = self.scheme_of(self.dtype, loaded.dtype)
            self.weight = _parameter(torch.empty(self.shape, dtype=self.scheme.dtype, device="cpu"))
        self.rounded |= bool(count_changed(loaded, self.scheme.dtype))
        self._place(self.weight, fitted(loaded, self.scheme, f"{self.name}.weight"), shard_id)
        self.missing -= _indices(shard_id, self.shards)
        if self.done:
            weight, self.weight = self.weight.data, None
            self.finish(weight)

    def _loader_of(self, tensor_name: str) -> Callable[..., None]:
        def load(param: Parameter, loaded: Tensor, shard_id: ShardId = None) -> None:
            self._note_kind(is_packed=True)
            if shard_id is None:
                refuse_reordered(self.layer, self.name, self.scheme)
            streams = self.streams.setdefault(shard_id, {})
            streams[tensor_name] = loaded
            if len(streams) == len(self.names):
                self._take(self.streams.pop(shard_id), shard_id)

        return load

    # Packed shards.

    def _take(self, tensors: dict[str, Tensor], shard_id: ShardId) -> None:
        """Cuts this process's part out of a shard; joins the parts after the last."""
        self.scheme = self.scheme_of()  # here the configuration has to name the dtype
        shape = _shape_on_disk(self.layer, shard_id)
        packed = PackedWeight(self.scheme, shape, tensors).to(self.device)
        packed.validate(self._shard(shard_id))
        self._require_missing(shard_id)
        try:
            for first, rows, columns in self._taken(shape, shard_id):
                self.parts.append((first, packed.format.cut(packed, rows, columns)))
            self.missing -= _indices(shard_id, self.shards)
            whole = self._join() if self.done else None
        except FormatError as error:
            raise FormatError(
                f"layer {self._shard(shard_id)} {list(shape)}: {error}. Serve the model on fewer "
                "GPUs (--tensor-parallel-size), or leave the layer dense: `flashsparse convert "
                f"--ignore {self.name}`"
            ) from None
        if whole is not None:
            self.finish(whole)

    def _taken(
        self, shape: tuple[int, int], shard_id: ShardId
    ) -> Iterator[tuple[int, range, range]]:
        """What this process takes of a shard.

        vLLM's loader is given numbers in the place of weights: each stands for a row, and for one
        of the blocks of columns that processes share; 0 stands for no row.

        Yields:
            Runs of rows: the first row in the layer, rows of the shard, and columns of it.
        """
        width = self.shape[1]
        blocks = shape[1] // width
        numbers = torch.arange(1, shape[0] * blocks + 1).view(shape[0], blocks)
        placed = _parameter(torch.zeros(self.shape[0], 1, dtype=numbers.dtype))
        self._place(placed, numbers, shard_id)
        where = placed.data.flatten().nonzero().flatten()
        taken = placed.data.flatten()[where] - 1
        rows, block = taken // blocks, int(taken[0]) % blocks
        ends = ((where.diff() != 1) | (rows.diff() != 1)).nonzero().flatten() + 1
        for run, of in zip(where.tensor_split(ends), rows.tensor_split(ends), strict=True):
            columns = range(block * width, (block + 1) * width)
            yield int(run[0]), range(int(of[0]), int(of[-1]) + 1), columns

    def _join(self) -> PackedWeight:
        """Puts all parts in order, with empty rows where vLLM pads a vocabulary."""
        joined: list[PackedWeight] = []
        end = 0
        for first, part in [*sorted(self.parts, key=lambda each: each[0]), (self.shape[0], None)]:
            if first > end:
                padding = torch.zeros(
                    first - end, self.shape[1], dtype=self.scheme.dtype, device=self.device
                )
                joined.append(self.scheme.format.pack(padding, self.scheme))
            if part is not None:
                joined.append(part)
                end = first + part.shape[0]
        self.parts.clear()
        return self.scheme.format.join(joined)

    # Both.

    def _place(self, parameter: Parameter, loaded: Tensor, shard_id: ShardId) -> None:
        self.place(parameter, loaded, *([] if shard_id is None else [shard_id]))

    def _require_missing(self, shard_id: ShardId) -> None:
        if not _indices(shard_id, self.shards) <= self.missing:
            raise FormatError(
                f"layer {self._shard(shard_id)}: the checkpoint has it twice. Fetch it again, or "
                "convert the model again with `flashsparse convert`"
            )

    def _note_kind(self, is_packed: bool) -> None:
        if self.is_packed is not None and self.is_packed != is_packed:
            raise FormatError(
                f"layer {self.name!r} merges layers of which the checkpoint has some packed and "
                "some dense. Convert the model again with `flashsparse convert --pack-all`, or "
                "with all of them in --ignore"
            )
        self.is_packed = is_packed

    def _shard(self, shard_id: ShardId) -> str:
        return repr(self.name) if shard_id is None else f"{self.name!r} (shard {shard_id})"


def made_up(
    shape: tuple[int, int], scheme: Scheme, sparsity: float, device: torch.device
) -> Tensor:
    """A weight of random numbers, of which a share is zero, or those that a pattern has so.

    Args:
        shape: Of the weight.
        scheme: How it is to be packed.
        sparsity: The share, where it is not the scheme's alone.
        device: Where it is made: a GPU makes up in seconds what takes a CPU many minutes.
    """
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.empty(shape, dtype=scheme.dtype, device=device)
    weight.uniform_(-1e-3, 1e-3, generator=generator)
    if scheme.format.options_for(weight) != {}:  # a pattern has its own zeros, or says which
        return scheme.format.thin(weight, scheme, 1 - sparsity)
    weight[torch.rand(shape, generator=generator, device=device) < sparsity] = 0
    return weight


def _parameter(tensor: Tensor) -> Parameter:
    """A parameter whose dimensions vLLM's loaders know."""
    made = Parameter(tensor, requires_grad=False)
    made.output_dim, made.input_dim = 0, 1
    return made


# Architectures that store q, k and v as one weight, one after the other. All others that store one
# weight interleave the heads, and vLLM reorders the rows of the tensor as it reads it, before it
# reaches any layer: of packed tensors that would make nonsense, and mostly not even an error.
_PLAIN_FUSED_QKV = {
    "GPT2LMHeadModel",
    "Phi3ForCausalLM",
    "Phi3VForCausalLM",
    "Phi4MMForCausalLM",
}


def refuse_reordered(layer: nn.Module, name: str, scheme: Scheme) -> None:
    """Raises FormatError for a packed layer whose rows vLLM's model would reorder."""
    config = get_current_vllm_config_or_none()
    known = config is not None and config.model_config is not None
    architecture = config.model_config.architecture if known else "this model"
    if isinstance(layer, QKVParallelLinear) and architecture not in _PLAIN_FUSED_QKV:
        raise FormatError(
            f"layer {name!r}: q, k and v are one packed weight, whose rows vLLM's {architecture} "
            "reorders while it loads, and packed rows cannot be. Serve the dense pruned model "
            f"instead: vllm serve DENSE_MODEL --sparse-method {scheme.format.name}"
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
    elif isinstance(layer, VocabParallelEmbedding):
        return layer.org_vocab_size, layer.embedding_dim
    else:
        sizes = getattr(layer, "output_sizes", [layer.output_size])
    return sum(sizes[i] for i in _indices(shard_id, len(sizes))), layer.input_size
