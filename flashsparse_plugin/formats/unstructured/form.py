# SPDX-License-Identifier: Apache-2.0
"""What formats of weights with zeros anywhere have in common: on disk, and on a CPU."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...packed import PackedWeight, Scheme, TensorSpec, rules
from ..values.coded import SCALE, CodedFormat, value_type_of
from ..values.types import quantise, require_scales, to_codes


class UnstructuredFormat(CodedFormat):
    """A format that holds any weight, by ops that are called after it.

    Where its options have a type of values, these ops take int8 codes, too: what is packed is a
    weight or its codes, and what is unpacked is codes, too, where their dtype is asked for, or a
    weight where scales of rows are given.

    Attributes:
        ops: `torch.ops.flashsparse`, with the ops of this format complete.
        streams: Names of the tensors that say where values are and what they are: all but scales.
    """

    ops: ClassVar[Any]
    streams: ClassVar[tuple[str, ...]]

    def takes_codes(self, values: str, group: int | None) -> bool:
        return "values" in self.Options.model_fields and values == "int8" and group is None

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        values = value_type_of(scheme)
        return weight if values is None else to_codes(weight, values, None)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        specs = self.stream_specs(scheme, shape)
        if value_type_of(scheme) is not None:
            specs[SCALE] = TensorSpec(torch.float32, (shape[0], 1))
        return specs

    @abstractmethod
    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        """What `streams` look like."""

    @abstractmethod
    def within_reach(self, tensor: Tensor) -> Tensor:
        """A tensor where the ops that pack and unpack can take it."""

    def wrap(
        self,
        tensors: Sequence[Tensor],
        scheme: Scheme,
        shape: Sequence[int],
        scales: Tensor | None = None,
    ) -> PackedWeight:
        """Names the tensors that an op returned, and the scales of codes."""
        named = dict(zip(self.streams, tensors, strict=True))
        if scales is not None:
            named[SCALE] = scales
        return PackedWeight(scheme, (shape[0], shape[1]), named)

    def op(self, promise: str) -> Any:
        """The op `<format>_<promise>`, None where there is none."""
        return getattr(self.ops, f"{self.name}_{promise}", None)

    def values_of(self, scheme: Scheme) -> tuple[int] | tuple[()]:
        """What ops are told last of codes, where tensors alone do not say that they are codes."""
        return ()

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        values = value_type_of(scheme)
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
        values = value_type_of(packed.scheme)
        if values is not None:
            require_scales(packed.tensors[SCALE], values, packed.dtype)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Takes the op that needs no dense weight in between, where there is one.

        Values stay as they are, or codes and scales, also in another dtype and for other
        activations; what is of another type goes by way of the weight that it stands for.
        """
        to, values = target.format, value_type_of(packed.scheme)
        if isinstance(to, UnstructuredFormat):
            to.tell_of_activations(target, device)
        if values is not None:  # of the rest ops take care
            self.require_tensors(packed)
            self.check_scales(packed)
        if to is self and values is not None and value_type_of(target) == values:
            same = PackedWeight(target, packed.shape, packed.tensors)
            self.check_scales(same)
            return same.to(device)
        turn, alike = self.op(f"to_{to.name}"), value_type_of(target) == values
        if turn is None or not alike or target.dtype != packed.dtype:
            return super().transcode(packed, target, device)
        assert isinstance(to, UnstructuredFormat)
        tensors = turn(
            *(packed.tensors[name].cpu() for name in self.streams),
            *packed.shape,
            *self.values_of(packed.scheme),
        )
        return to.wrap(tensors, target, packed.shape, packed.tensors.get(SCALE)).to(device)

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
