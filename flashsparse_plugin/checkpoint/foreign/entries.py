# SPDX-License-Identifier: Apache-2.0
"""Entries of weights that files keep in another tool's layout, among those of all tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...packed import FormatError
from ..files.headers import CheckpointError, MadeTensorInfo, TensorInfo
from . import find_foreign
from .layout import Layout


@dataclass(frozen=True)
class ForeignTensorInfo(MadeTensorInfo):
    """A weight that its files keep in another tool's layout; whoever reads it gets it dense.

    Attributes:
        layout: The layout.
        parts: The entries of its tensors in the files.
    """

    layout: Layout = field(kw_only=True)
    parts: Mapping[str, TensorInfo] = field(kw_only=True)

    @classmethod
    def find(cls, name: str, layout: Layout, parts: Mapping[str, TensorInfo]) -> ForeignTensorInfo:
        """Reads the shape of a weight, and no other tensor of it.

        Raises:
            CheckpointError: Where its tensors have not the dtypes and shapes of the layout.
        """
        values = parts[layout.values]
        tensors = {
            part: torch.empty(info.shape, dtype=info.dtype, device="meta")
            for part, info in parts.items()
        }
        if "shape" in parts and parts["shape"].nbytes <= _MAX_SHAPE_BYTES:
            tensors["shape"] = parts["shape"].read()
        try:
            shape = layout.shape(name, tensors)
        except FormatError as error:
            raise CheckpointError(f"{values.path}: {error}") from None
        return cls(name, values.path, values.dtype, shape, layout=layout, parts=parts)

    @property
    def bytes_stored(self) -> int:
        return sum(info.nbytes for info in self.parts.values())

    def check(self) -> None:
        """Proves what its tensors say of the weight.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout.
        """
        self._ask(self.layout.check)

    def read(self) -> Tensor:
        """Makes the weight.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout.
        """
        return self._ask(self.layout.dense)

    def _ask(self, question: Callable[[str, Mapping[str, Tensor]], Any]) -> Any:
        try:
            return question(self.name, {part: info.read() for part, info in self.parts.items()})
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {error}") from None


_MAX_SHAPE_BYTES = 16  # two numbers


def as_dense(tensors: Mapping[str, TensorInfo], path: Path) -> dict[str, TensorInfo]:
    """Puts dense weights in the place of tensors that other tools keep for them.

    Args:
        tensors: The entries of all tensors of a checkpoint.
        path: Where they are, for error messages.

    Raises:
        CheckpointError: For tensors that are no whole weight.
    """
    try:
        found = find_foreign(tensors)
    except FormatError as error:
        raise CheckpointError(f"{path}: {error}") from None
    weight_of: dict[str, TensorInfo] = {}
    for name, (layout, parts) in found.items():
        infos = {part: tensors[each] for part, each in parts.items()}
        weight_of |= dict.fromkeys(parts.values(), ForeignTensorInfo.find(name, layout, infos))
    dense: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        shown = weight_of.get(name, info)
        dense[shown.name] = shown
    return dense
