# SPDX-License-Identifier: Apache-2.0
"""Weights of linear layers that are parts of one tensor of a file: q, k and v, or all experts.

Each is shown as an entry of its own, under its name in the model: packed it can be read back under
that name, which a part of a packed tensor could not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from ...modules import linear_modules, stored_weight
from ..files.headers import CheckpointError, MadeTensorInfo, TensorInfo
from ..foreign.code_entries import CodesInfo
from .experts import Stack
from .renaming import Names


@dataclass(frozen=True)
class PartInfo(MadeTensorInfo):
    """One of the weights that transformers makes of a tensor.

    Attributes:
        source: The entry of the tensor.
        split: Reads a tensor of that name and splits it.
    """

    source: TensorInfo = field(kw_only=True)
    split: Callable[[str], Mapping[str, Tensor]] = field(kw_only=True, compare=False)

    def read(self) -> Tensor:
        return self.split(self.source.name)[self.name]


@dataclass(frozen=True)
class ExpertInfo(MadeTensorInfo):
    """One projection of one expert, of a tensor that holds all of them.

    Attributes:
        source: The entry of the tensor.
        stack: What it is of.
        number: Which expert.
        side: Which of the projections that the tensor holds.
        turned: Whether the tensor has each matrix transposed, compared with the model.
    """

    source: TensorInfo = field(kw_only=True)
    stack: Stack = field(kw_only=True)
    number: int = field(kw_only=True)
    side: int = field(kw_only=True)
    turned: bool = field(kw_only=True)

    @property
    def parameter(self) -> str:
        return self.stack.parameter

    def read(self) -> Tensor:
        own = self.source.part(self.number, self.number + 1)
        own = own.transpose(1, 2) if self.turned else own
        sides = len(self.stack.projections)
        return self.stack.layout.matrices(own, sides)[0, self.side].contiguous()


def split_experts(
    names: Names, tensors: Mapping[str, TensorInfo], stacks: Mapping[str, Stack]
) -> dict[str, TensorInfo]:
    """Puts each projection of each expert in the place of a tensor that holds all of them.

    A tensor stays as it is where transformers makes anything else of it than the parameter, and
    where another tool's codes are in it.

    Args:
        names: Those of a skeleton without packed layers.
        tensors: The entries of a checkpoint.
        stacks: Those of the model.
    """
    shown: dict[str, TensorInfo] = {}
    for key, info in tensors.items():
        target, made = names.of(key) if stacks and len(info.shape) == 3 else ("", [])
        stack = stacks.get(target) if made in ([], [target]) else None
        turned = None if stack is None else names.turned(key, info.shape)
        if stack is None or turned is None or isinstance(info, CodesInfo):
            shown[key] = info
            continue
        for number, projection in stack.named():
            name = f"{stack.name_of(number, projection)}.weight"
            if name in tensors:
                raise CheckpointError(
                    f"expert {name!r} is in the checkpoint twice, by itself and in {key!r}: fetch "
                    "the model again"
                )
            shown[name] = ExpertInfo(
                *(name, info.path, info.dtype, stack.shape),
                source=info,
                stack=stack,
                number=number,
                side=stack.projections.index(projection),
                turned=turned,
            )
    return shown


def split_weights(names: Names, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Puts the weights of linear layers in the place of a tensor that holds several of them.

    A tensor stays as it is where it holds anything else, where another tool's codes are in it
    (which a split would have to round again), and where a part would not be found by its own name.

    Args:
        names: Those of a skeleton without packed layers.
        tensors: The entries of a checkpoint.
    """

    @lru_cache(maxsize=1)  # its parts are asked for one after the other, each several times
    def split(key: str) -> Mapping[str, Tensor]:
        return names.parts(key, tensors[key].read())

    linears = linear_modules(names.model)
    weights = {f"{name}.weight": stored_weight(module) for name, module in linears.items()}
    shown: dict[str, TensorInfo] = {}
    for key, info in tensors.items():
        _, made = names.of(key)
        if not made or isinstance(info, CodesInfo) or not weights.keys() >= set(made):
            shown[key] = info
            continue
        header = torch.empty(info.shape, dtype=info.dtype, device="meta")
        shapes = {name: part.shape for name, part in names.parts(key, header).items()}
        alone = all(names.of(name) == (name, []) for name in made)
        if not alone or shapes != {name: weights[name].shape for name in made}:
            shown[key] = info
            continue
        shown |= {
            name: PartInfo(name, info.path, info.dtype, tuple(shape), source=info, split=split)
            for name, shape in shapes.items()
        }
    return shown
