# SPDX-License-Identifier: Apache-2.0
"""Experts of a layer that files have in one tensor, as gpt-oss, Granite and Qwen3-VL do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..files.headers import CheckpointError
from .experts import Expert, Stack
from .linears import StoredModel


def stored_whole(stored: StoredModel) -> dict[str, tuple[str, bool]]:
    """By parameter the tensor that holds all its experts, dense, and whether it is turned.

    A tensor is turned that has each matrix transposed, compared with the model.
    """
    found, checkpoint, names = {}, stored.checkpoint, stored.names
    for parameter in checkpoint.stacks:
        made = checkpoint.made.get(parameter, [])
        key = checkpoint.stored_as.get(parameter) or (made[0] if len(made) == 1 else None)
        info = stored.directory.tensors.get(key or "")
        if info is None or len(info.shape) != 3 or names.of(info.name)[1] not in ([], [parameter]):
            continue
        if (turned := names.turned(info.name, info.shape)) is not None:
            found[parameter] = (info.name, turned)
    return found


def whole_in_files(stored: StoredModel, expert: Expert | None) -> Stack | None:
    """The stack of an expert whose family has all of them in one tensor; else None."""
    if expert is None or stored.names.projections(expert.parameter):
        return None
    return stored.checkpoint.stacks[expert.parameter]


def merged(stack: Stack, experts: Sequence[Tensor], turned: bool) -> Tensor:
    """Experts of a stack as one tensor of the files.

    Args:
        stack: The stack.
        experts: Dense weights, each projection of each expert, in order.
        turned: Whether the files have each matrix transposed, compared with the model.
    """
    sides = len(stack.projections)
    matrices = torch.stack([*experts]).unflatten(0, (-1, sides))
    whole = stack.layout.parameter(matrices)
    return whole.transpose(1, 2).contiguous() if turned else whole


def as_in_files(stored: StoredModel, stack: Stack) -> tuple[str, tuple[int, ...], bool]:
    """What files of the family have of all experts of a parameter, dense.

    Returns:
        The name of the tensor, its shape, and whether it is turned.

    Raises:
        CheckpointError: Where transformers would make something else of such a tensor.
    """
    names = stored.names
    parameter = names.skeleton[stack.parameter]
    name, shape = names.in_files(stack.parameter, parameter), tuple(parameter.shape)
    for own in ((shape[0], shape[2], shape[1]), shape):  # first as its authors have it
        target, made = names.of(name)
        turned = names.turned(name, own)
        if target == stack.parameter and made in ([], [target]) and turned is not None:
            return name, own, turned
    raise CheckpointError(
        f"experts {stack.parameter!r} {list(shape)} of {stored.directory.path} cannot be written "
        f"as a tensor that transformers reads: it makes something else of {name!r}"
    )
