# SPDX-License-Identifier: Apache-2.0
"""Weights with zeros anywhere that are kept by a bitmap: what their forms have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from ...packed import PackedWeight, Scheme, TensorSpec, rules
from ..values.coded import SCALE, CodePacker, ValueOptions, value_options
from ..values.types import VALUE_TYPES, quantise, require_scales, to_codes
from .form import UnstructuredFormat


class BitmapOptions(ValueOptions):
    """Options of tiled_bitmap, and of the form that it has on a CPU.

    Attributes:
        values, activations: See `ValueOptions`. Codes are int8, with a scale for each row.
    """

    values: Literal["native", "int8"] = "native"
    activations: Literal["native", "int8"] = "native"

    @model_validator(mode="before")
    @classmethod
    def _have_int8_by_row(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Says what else to do where other formats have more."""
        for option in ("values", "activations"):
            asked = options.get(option)
            if asked in VALUE_TYPES and asked != "int8":
                raise ValueError(
                    f"option {option}: {asked} codes need zeros in a pattern. Remedy: "
                    f"{option}=int8, or the format nm_vector"
                )
        if options.get("group") is not None:
            raise ValueError(
                "option group: codes of zeros anywhere have a scale for each row alone. Remedy: "
                "leave it out, or the format nm_vector"
            )
        return options

    @property
    def title(self) -> str:
        """ "int8", or, of rounded activations, "int8 x int8"; nothing of native values."""
        if self.value_type is None:
            return ""
        return f"{self.values} x {self.activations}" if self.activation_type else self.values


class BitmapFormat(CodePacker, UnstructuredFormat):
    """A format that keeps any weight by a bitmap, its values as they are or as int8 codes.

    Its ops take both: what is packed is a weight or its codes, and what is unpacked is codes, too,
    where their dtype is asked for, or a weight where scales are given.
    """

    Options = BitmapOptions

    def takes_codes(self, values: str, group: int | None) -> bool:
        return values == "int8" and group is None

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        values = value_options(scheme).value_type
        return weight if values is None else to_codes(weight, values, None)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        if value_options(scheme).value_type is None:
            return self.stream_specs(scheme, shape)
        scales = TensorSpec(torch.float32, (shape[0], 1))
        return {**self.stream_specs(scheme, shape), SCALE: scales}

    @abstractmethod
    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        """What `streams` look like."""

    @abstractmethod
    def within_reach(self, tensor: Tensor) -> Tensor:
        """A tensor where the ops that pack and unpack can take it."""

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        values = value_options(scheme).value_type
        if values is None:
            return self._pack(weight.detach(), None, scheme)
        return self.pack_codes(*quantise(weight.detach(), values, None), scheme)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        numbers, stored = self.require_codes(codes, scales, scheme)
        return self._pack(numbers.to(torch.int8), stored, scheme)

    def _pack(self, values: Tensor, scales: Tensor | None, scheme: Scheme) -> PackedWeight:
        with rules():
            tensors = self.op("pack")(self.within_reach(values))
        return self.wrap(tensors, scheme, values.shape, scales).to(values.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        scales = packed.tensors.get(SCALE)
        own = () if scales is None else (self.within_reach(scales),)
        return self._unpack(packed, packed.dtype, *own)

    def codes(self, packed: PackedWeight) -> Tensor:
        """Codes [out_features, in_features], int8, zeros included."""
        return self._unpack(packed, torch.int8)

    def _unpack(self, packed: PackedWeight, dtype: torch.dtype, *scales: Tensor) -> Tensor:
        tensors = (self.within_reach(packed.tensors[name]) for name in self.streams)
        return self.op("unpack")(*tensors, *packed.shape, dtype, *scales).to(packed.device)

    def check_scales(self, packed: PackedWeight) -> None:
        """Raises FormatError for scales of codes that a product would overflow by."""
        values = value_options(packed.scheme).value_type
        if values is not None:
            require_scales(packed.tensors[SCALE], values, packed.dtype)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Codes stay codes in another dtype and for other activations."""
        own = value_options(packed.scheme).value_type
        if own is not None:  # of the rest ops take care
            self.require_tensors(packed)
            self.check_scales(packed)
        if target.format is not self or own is None or value_options(target).value_type != own:
            return super().transcode(packed, target, device)
        same = PackedWeight(target, packed.shape, packed.tensors)
        self.check_scales(same)
        return same.to(device)

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        if SCALE not in packed.tensors:
            return super()._cut(packed, rows, columns)
        own = slice(rows.start, rows.stop)
        codes = self.codes(packed)[own, columns.start : columns.stop].contiguous()
        return self.pack_codes(codes, packed.tensors[SCALE][own], packed.scheme)

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        if SCALE not in parts[0].tensors:
            return super()._join(parts)
        codes = torch.cat([self.codes(part) for part in parts])
        scales = torch.cat([part.tensors[SCALE] for part in parts])
        return self.pack_codes(codes, scales, parts[0].scheme)
