# SPDX-License-Identifier: Apache-2.0
"""Entries of quantized weights of another tool: dense, as code x scale, or packed as they are."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...formats.values.quantization import packs_codes
from ...formats.values.types import VALUE_TYPES, require_scales
from ...packed import FormatError, PackedWeight, Scheme
from ..files.headers import CheckpointError, MadeTensorInfo, TensorInfo
from .codes import CodeLayout, Codes, multiply


@dataclass(frozen=True)
class CodesInfo(MadeTensorInfo):
    """A weight that its files keep as codes and scales; whoever reads it gets it dense.

    Attributes:
        layout: The layout.
        parts: The entries of its tensors in the files, those that are not used included.
        codes: What these say of its codes.
        rounds_tokens: Whether config.json asks for activations in codes of the same type, by token.
    """

    layout: CodeLayout = field(kw_only=True)
    parts: Mapping[str, TensorInfo] = field(kw_only=True)
    codes: Codes = field(kw_only=True)
    rounds_tokens: bool = field(kw_only=True)

    @property
    def layer(self) -> str:
        return self.name.removesuffix(".weight")

    @property
    def bytes_stored(self) -> int:
        return sum(info.nbytes for info in self.parts.values())

    @property
    def options(self) -> dict[str, Any]:
        """The options of a scheme that say of what type its codes are."""
        group = {} if self.codes.group is None else {"group": self.codes.group}
        return {"values": self.codes.values, **group}

    @property
    def activations(self) -> str:
        """The option `activations` of a scheme, as config.json has it."""
        return self.codes.values if self.rounds_tokens else "native"

    def read_codes(
        self, tensors: Mapping[str, Tensor] | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Codes [out_features, in_features] and scales [out_features, groups].

        Every reader of the weight gets its scales here, so they are proven here.

        Args:
            tensors: By part; read from the files where they are not given.
            dtype: Of the weight, which no product of a code and a scale may overflow; None: `dtype`
                of this entry.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout, and for scales that
                are not finite, negative, or too large for the dtype.
        """
        if tensors is None:
            tensors = {part: info.read() for part, info in self.parts.items()}
        layout, values = self.layout, VALUE_TYPES[self.codes.values]
        try:
            codes, scales = layout.read(self.layer, tensors, self.codes)
            try:
                require_scales(scales, values, dtype or self.dtype, f"its {layout.scale}")
            except FormatError as error:
                layout.refuse(self.layer, self.codes.shape, str(error))
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        return codes, scales

    def pack(self, scheme: Scheme, tensors: Mapping[str, Tensor] | None = None) -> PackedWeight:
        """Packs codes and scales as they are; `tensors` as of `read_codes`.

        Raises:
            CheckpointError: For a weight that the scheme cannot hold, and as `read_codes` does.
        """
        assert packs_codes(scheme.format)
        codes, scales = self.read_codes(tensors, scheme.dtype)
        try:
            return scheme.format.pack_codes(codes, scales, scheme)
        except FormatError as error:
            raise CheckpointError(
                f"{self.path}: layer {self.layer!r} {list(self.shape)}, quantized by "
                f"compressed-tensors, cannot be packed to {scheme.title}: {error}. Codes are "
                "not pruned: prune the model before it is quantized, or pack any zeros with "
                "`flashsparse convert --format tiled_bitmap`. A model without zeros gains nothing "
                "here: serve it with vLLM alone"
            ) from None

    def read(self) -> Tensor:
        codes, scales = self.read_codes()
        return multiply(codes, scales, self.codes.group, self.dtype)


class _Packed:
    """A weight, packed when the first of its tensors is read, and let go of with the last."""

    def __init__(self, weight: CodesInfo, scheme: Scheme):
        self.weight, self.scheme = weight, scheme
        self.left: dict[str, Tensor] = {}
        self.lock = threading.Lock()

    def take(self, own: str) -> Tensor:
        with self.lock:
            if own not in self.left:
                self.left = dict(self.weight.pack(self.scheme).tensors)
            return self.left.pop(own)


@dataclass(frozen=True)
class PackedInfo(TensorInfo):
    """A packed tensor of a weight that its files keep as codes and scales."""

    packed: _Packed = field(kw_only=True)

    @property
    def weight(self) -> CodesInfo:
        return self.packed.weight

    @property
    def scheme(self) -> Scheme:
        return self.packed.scheme

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.weight.codes.shape

    @property
    def bytes_stored(self) -> int:
        first = self.scheme.format.tensor_names[0]
        return self.weight.bytes_stored if self.name.endswith(f".{first}") else 0

    def read(self) -> Tensor:
        return self.packed.take(self.name.rpartition(".")[2])


def packed_entries(weight: CodesInfo, scheme: Scheme) -> dict[str, PackedInfo]:
    """The entries of the packed tensors of a weight, by their names in the checkpoint."""
    packed, found = _Packed(weight, scheme), {}
    for own, spec in scheme.format.tensors(scheme, weight.codes.shape).items():
        key, sizes = f"{weight.layer}.{own}", tuple(size or 0 for size in spec.shape)
        found[key] = PackedInfo(key, weight.path, spec.dtype, sizes, packed=packed)
    return found
