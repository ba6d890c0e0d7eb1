# SPDX-License-Identifier: Apache-2.0
"""Rows of a packed weight by their numbers, as an embedding reads them.

One packed weight then serves a tied embedding and the output head. It takes a form that reads rows
by itself, or one that keeps every element as a byte, with one scale a row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..packed import FormatError, PackedWeight, Scheme
from .values.quantization import quantization_of


@runtime_checkable
class ReadsRows(Protocol):
    """A form whose rows can be read one by one, by some of its schemes."""

    @abstractmethod
    def row_places(self, scheme: Scheme, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Where the elements of a row are.

        Returns:
            int32 [rows of a block, in_features]: offsets inside a block. The first tensor of the
            form, flattened, holds block after block.
        """


@runtime_checkable
class ReadsWholeRows(Protocol):
    """A form that has an op for rows, whatever its scheme."""

    @abstractmethod
    def read_rows(self, ids: Tensor, tensors: Mapping[str, Tensor], in_features: int) -> Tensor:
        """`unpack()[ids]` of int64 ids, from the packed tensors."""


def row_places(packed: PackedWeight) -> Tensor:
    """What `read_rows` needs to know of a weight, on its device.

    Raises:
        FormatError: Where rows of the weight cannot be read one by one.
    """
    format, found = packed.format, quantization_of(packed.scheme)
    if isinstance(format, ReadsWholeRows):
        return torch.empty(0, packed.shape[1], dtype=torch.int32, device=packed.device)
    pattern = format.pattern(packed.scheme)
    is_whole = pattern is not None and pattern[0] == pattern[1]
    if not isinstance(format, ReadsRows) or not is_whole or found is None or found.type.bits != 8:
        raise FormatError(
            f"rows of a {packed.scheme} weight {list(packed.shape)} cannot be read one by one: an "
            "embedding takes values of 8 bits or exact ones, none of them dropped. Remedy: head= "
            "int8, fp8 or lossless"
        )
    if found.group is not None:
        raise FormatError(
            f"rows of a {packed.scheme} weight {list(packed.shape)} have {found.group} columns a "
            "scale, and an embedding takes one scale a row. Remedy: leave the option group out"
        )
    return format.row_places(packed.scheme, packed.shape, packed.device)


def read_rows(ids: Tensor, scheme: Scheme, tensors: Mapping[str, Tensor], places: Tensor) -> Tensor:
    """`unpack()[ids]` without unpacking (traceable by torch.compile).

    Args:
        ids: Integers of any shape, below out_features.
        scheme: The scheme of the tensors.
        tensors: The packed tensors by name: values first, scales last.
        places: Of `row_places`.

    Returns:
        [*ids.shape, in_features] in the dtype of the scheme: code x scale, rounded once.
    """
    if (whole := getattr(scheme.format, "read_rows", None)) is not None:
        return whole(ids.long(), tensors, places.shape[1])
    values, *_, scales = tensors.values()
    found, rows = quantization_of(scheme), len(places)
    assert found is not None
    ids = ids.long()
    first = ids // rows * (values.numel() // -(-scales.numel() // rows))
    codes = values.view(torch.uint8).flatten()[first[..., None] + places[ids % rows].long()]
    numbers = found.type.numbers(codes).float()
    return (numbers * scales.flatten()[ids][..., None]).to(scheme.dtype)
