# SPDX-License-Identifier: Apache-2.0
"""Bytes of the linear weights of a model, those of experts among them, whatever holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..checkpoint.read.directory import ModelDirectory
from ..checkpoint.read.linears import StoredModel
from ..expert_layout import experts_of
from ..experts import SparseExperts
from ..experts.layer import stacks_in
from ..linear import SparseLinear
from ..modules import is_linear, weight_of


@dataclass(frozen=True)
class Sizes:
    """Linear weights, all layers together.

    Attributes:
        weights: Their number, zeros included.
        disk: Bytes that they take when they are saved.
        memory: Bytes that they take in memory, as they are multiplied.
    """

    weights: int
    disk: int
    memory: int

    @property
    def bits(self) -> float:
        """Bits a weight, saved."""
        return 8 * self.disk / self.weights


def linear_names(model: Any) -> list[str]:
    """Names of the linear layers of a model of transformers and of its modules of experts.

    Not of its output head: the head and the embeddings stay dense in all that is compared.
    """
    head = model.get_output_embeddings()
    experts = {name.rpartition(".")[0] for name in experts_of(model)}
    return [
        name
        for name, module in model.named_modules()
        if name in experts
        or isinstance(module, SparseExperts)
        or (
            module is not head
            and (isinstance(module, (nn.Linear, SparseLinear)) or is_linear(module))
        )
    ]


def count(model: nn.Module, names: Iterable[str]) -> int:
    """Weights of some layers, zeros included."""
    total = 0
    for name in names:
        module = model.get_submodule(name)
        if _has_experts(module):
            total += sum(each.numel() for each in experts_of(module).values())
            total += sum(each.stack.experts * math.prod(each.shape) for each in stacks_in(module))
        elif isinstance(module, SparseLinear) or not is_linear(module):
            assert isinstance(module, (nn.Linear, SparseLinear))
            total += module.in_features * module.out_features
        else:
            total += weight_of(module).numel()
    return total


def zeros(model: nn.Module, names: Iterable[str]) -> int:
    """Zeros among the weights of some layers, dense or packed."""
    total = 0
    for name in names:
        module = model.get_submodule(name)
        if _has_experts(module):
            for weight in experts_of(module).values():
                total += weight.numel() - int(weight.detach().count_nonzero())
            for stack in (each.stack for each in stacks_in(module)):
                own = (stack.expert(number) for number in range(stack.experts))
                total += sum(round(each.sparsity * math.prod(each.shape)) for each in own)
        elif isinstance(module, SparseLinear):
            total += round(module.packed.sparsity * module.in_features * module.out_features)
        elif is_linear(module):
            weight = weight_of(module).detach()
            total += weight.numel() - int(weight.count_nonzero())
    return total


def sizes_of(model: nn.Module, names: Iterable[str], weights: int) -> Sizes:
    """What some layers take, saved and in memory.

    Args:
        model: The model.
        names: Names of layers.
        weights: What `count` found before the layers were quantised.
    """
    disk = memory = 0
    for name in names:
        module = model.get_submodule(name)
        memory += _memory(module)
        if isinstance(module, SparseExperts):
            parts = (packed for each in stacks_in(module) for _, packed in each.storage())
            disk += sum(packed.nbytes for packed in parts)
        else:
            disk += module.storage().nbytes if isinstance(module, SparseLinear) else _memory(module)
    return Sizes(weights, disk, memory)


def stored_bytes(path: Path) -> int:
    """Bytes of the linear weights in the files of a model, but for its output head."""
    model = StoredModel(ModelDirectory(path), split=True)
    stored = {f"{each.stored}." for each in model.linears if not each.is_head}
    return sum(
        info.bytes_stored
        for name, info in model.directory.tensors.items()
        if not name.endswith(".bias") and f"{name.rpartition('.')[0]}." in stored
    )


def _has_experts(module: nn.Module) -> bool:
    return isinstance(module, SparseExperts) or bool(experts_of(module))


def _memory(module: nn.Module) -> int:
    """Bytes of what a layer holds beside its bias."""
    if _has_experts(module):
        dense = sum(weight.nbytes for weight in experts_of(module).values())
        return dense + sum(each.stack.nbytes for each in stacks_in(module))
    if isinstance(module, SparseLinear):
        return module.packed.nbytes
    state = module.state_dict().items()
    return sum(nbytes_of(value) for key, value in state if not key.endswith("bias"))


def nbytes_of(value: Any) -> int:
    """Bytes of a tensor: of codes and scales where it is quantised by torch or torchao.

    Of a pair, as torch's dynamically quantised layers keep it, the first part is the weight and
    the second the bias.
    """
    if isinstance(value, tuple):
        return nbytes_of(value[0])
    if not isinstance(value, Tensor):
        return 0
    if hasattr(value, "__tensor_flatten__"):
        inner, _ = value.__tensor_flatten__()
        return sum(nbytes_of(getattr(value, name)) for name in inner)
    if value.is_quantized:
        rows = value.shape[0] if "channel" in str(value.qscheme()) else 1
        return value.numel() * value.element_size() + 4 * rows
    return value.nbytes
