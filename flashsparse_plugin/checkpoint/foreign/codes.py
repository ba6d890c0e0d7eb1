# SPDX-License-Identifier: Apache-2.0
"""What the layouts of quantized weights share: codes, scales, and proofs of both.

A weight is code x scale. Nothing in a file is trusted: shapes and dtypes are proven by the headers,
what tensors contain when they are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from ...formats.values.dtypes import bits_as
from ...formats.values.types import scale_count, split_nibbles, spread_scales
from ...packed import FormatError, dtype_name
from .layout import DTYPES
from .quantization import Arguments

UNUSED = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
"""Tensors of activations whose scales were measured beforehand, which are not used."""


@dataclass(frozen=True)
class Codes:
    """What the headers of a layer say of its codes.

    Attributes:
        shape: (out_features, in_features).
        values: The value type.
        group: Columns of a row that share a scale; None: all of them.
        scales: Dtype of the scales.
    """

    shape: tuple[int, int]
    values: str
    group: int | None
    scales: torch.dtype


class CodeLayout(ABC):
    """The tensors that a quantized weight is kept as.

    Attributes:
        name: What compressed-tensors calls the layout.
        scale: The part with the scales.
    """

    name: ClassVar[str]
    scale: ClassVar[str] = "weight_scale"

    @abstractmethod
    def has(self, parts: set[str]) -> bool:
        """Whether these are all parts of a weight, without those that are not used."""

    @abstractmethod
    def describe(self, layer: str, tensors: Mapping[str, Tensor], arguments: Arguments) -> Codes:
        """Proves dtypes and shapes of the tensors of a layer.

        Args:
            layer: Its name, for error messages.
            tensors: By part, on the meta device but for those of a few bytes.
            arguments: How config.json says that it is quantized.

        Raises:
            FormatError: For tensors that are not a weight in this layout.
        """

    @abstractmethod
    def read(
        self, layer: str, tensors: Mapping[str, Tensor], codes: Codes
    ) -> tuple[Tensor, Tensor]:
        """Reads a layer that `describe` has proven.

        Returns:
            Codes [out_features, in_features], int8 or float8_e4m3fn, and scales [out_features,
            groups] in their own dtype.

        Raises:
            FormatError: For contents that are not a weight in this layout.
        """

    def group_of(
        self, layer: str, shape: tuple[int, int], scales: Tensor, arguments: Arguments
    ) -> int | None:
        """Columns that share a scale, proven by the shape of the scales [rows, groups]."""
        group = arguments.group
        wanted = [[shape[0], scale_count(shape[1], group)]]
        if group is None:
            wanted += [[shape[0]], [1], [1, 1], []]
        if scales.dtype not in DTYPES or list(scales.shape) not in wanted:
            self.refuse(
                layer,
                shape,
                f"its {self.scale} is {dtype_name(scales.dtype)} {list(scales.shape)}, and not a "
                f"float tensor {wanted[0]}, as config.json has it by {arguments.scope}",
            )
        return group

    def refuse(self, layer: str, shape: tuple[int, ...], rule: str) -> NoReturn:
        raise FormatError(
            f"layer {layer!r} {list(shape)}, kept as {self.name}: {rule}. The checkpoint is "
            "damaged or of a kind that is not read: fetch it again, or serve it with vLLM alone"
        )


def each_row(scales: Tensor, rows: int) -> Tensor:
    """Scales of rows, or the one of all of them, as [rows, 1]."""
    return scales.reshape(-1, 1).expand(rows, 1)


def multiply(codes: Tensor, scales: Tensor, group: int | None, dtype: torch.dtype) -> Tensor:
    """The weight that codes and scales stand for: the product in float32, rounded to `dtype`."""
    spread = spread_scales(scales.float(), codes.shape[1], group)
    return (codes.float() * spread).to(dtype)


def nibbles(words: Tensor) -> Tensor:
    """The nibbles of int32 words [rows, count], the lowest first: int8 [rows, 8 * count], 0..15."""
    return split_nibbles(bits_as(words, torch.uint8)).view(torch.int8)


def signed(words: Tensor, bits: int) -> Tensor:
    """The codes in int32 words [rows, count], each stored with half of their range added.

    Args:
        words: The lowest bits of a word are its first code.
        bits: Of a code: 8 or 4.

    Returns:
        int8 [rows, 32 / bits * count].
    """
    if bits == 8:
        return (bits_as(words, torch.uint8) ^ 128).view(torch.int8)
    return nibbles(words) - 8
