# SPDX-License-Identifier: Apache-2.0
"""What formats of weights with zeros anywhere have in common: on disk, and on a CPU.

CUDA kernels read such a format as it is stored; on a CPU each runs as an interleaved bitmap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ...ops import where_kernels_are
from ...packed import Format, PackedWeight, Scheme, TensorSpec, rules
from ...plan import Plan, limits_of
from ..values.quantization import (
    SCALE,
    quantization_of,
    require_quantized,
    tell_of_activations,
)
from .pieces import Division


class Arranged(Protocol):
    """A form that is made of the tensors of the one on disk, without the dense weight between."""

    def scheme(self, dtype: torch.dtype, options: Mapping[str, Any] | None = None) -> Scheme: ...
    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight: ...


class UnstructuredFormat(Format):
    """A format that holds any weight, by ops that are called after it.

    Where its options have a type of values, these ops take int8 codes, too: what is packed is a
    weight or its codes, and what is unpacked is codes, too, where their dtype is asked for, or a
    weight where scales of rows are given.

    Attributes:
        ops: `torch.ops.flashsparse`, with the ops of this format complete.
        linear_op: That which multiplies.
        limits: How many of a plan's limits it takes; see `limits_of`.
        streams: Names of the tensors that say where values are and what they are: all but scales.
        pieces: How a weight is divided; None: it is in one piece.
        on_cpu: The form that a CPU's kernels read; None: this one.
        on_gpu: The same of a GPU's.
    """

    checks_as_it_reads = True
    unpacking = (0.66, 1.0)
    ops: ClassVar[Any]
    linear_op: ClassVar[Any]
    limits: ClassVar[int] = 0
    streams: ClassVar[tuple[str, ...]]
    pieces: ClassVar[Division | None] = None
    on_cpu: ClassVar[Format | None] = None
    on_gpu: ClassVar[Arranged | None] = None

    def takes_codes(self, values: str, group: int | None) -> bool:
        return "values" in self.Options.model_fields and values == "int8" and group is None

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        found = quantization_of(scheme)
        return weight if found is None else found.conform(weight)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        specs = dict(zip(self.streams, self.stream_specs(scheme, shape), strict=True))
        found = quantization_of(scheme)
        return specs if found is None else specs | {SCALE: found.scale_spec(scheme.dtype, shape)}

    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> tuple[TensorSpec, ...]:
        """What `streams` look like."""
        assert self.pieces is not None
        return self.pieces.specs(shape)

    def within_reach(self, tensor: Tensor) -> Tensor:
        """A tensor where the ops that pack and unpack can take it."""
        return where_kernels_are(tensor.detach())

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        form = {"cpu": self.on_cpu, "cuda": self.on_gpu}.get(device.type)
        return scheme if form is None else form.scheme(scheme.dtype, scheme.values)

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
        found = quantization_of(scheme)
        if found is None:
            return self._pack(weight.detach(), None, scheme)
        return self.pack_codes(*found.quantise(weight.detach()), scheme)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        numbers, stored = require_quantized(scheme).require_codes(codes, scales, scheme)
        return self._pack(numbers.to(torch.int8), stored, scheme)

    def pack_prepared(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        tell_of_activations(scheme, weight.device)
        runtime = self.runtime(scheme, weight.device)
        return runtime.format.pack(weight, runtime)

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
        return self.op("unpack")(*self._streams(packed), *packed.shape, dtype, *scales).to(
            packed.device
        )

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        scales = (tensors[SCALE],) if SCALE in tensors else ()  # each argument takes time
        return self.linear_op(
            x,
            *map(tensors.__getitem__, self.streams),
            shape[0],
            scheme.dtype_number,
            bias,
            *(limits_of(plan, self.limits) if self.limits else ()),
            *scales,
        )

    def check(self, packed: PackedWeight) -> None:
        self.check_scales(packed)
        self._validate(packed)

    def check_scales(self, packed: PackedWeight) -> None:
        """Raises FormatError for scales of codes that a product would overflow by."""
        found = quantization_of(packed.scheme)
        if found is not None:
            found.require_scales(packed.tensors[SCALE], packed.dtype)

    def nonzeros(self, packed: PackedWeight) -> int:
        if self.pieces is None:  # offsets count kept values
            return int(packed.tensors[self.streams[-1]][-1])
        return int(self._validate(packed))

    def _validate(self, packed: PackedWeight) -> Tensor:
        values = self.values_of(packed.scheme)
        return self.op("validate")(*self._streams(packed), *packed.shape, *values)

    def _streams(self, packed: PackedWeight) -> list[Tensor]:
        return [self.within_reach(packed.tensors[name]) for name in self.streams]

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Takes the op that needs no dense weight in between, where there is one.

        Values stay as they are, or codes and scales, also in another dtype and for other
        activations; what is of another type goes by way of the weight that it stands for.
        """
        form = self.on_gpu
        if form is not None and target == form.scheme(packed.dtype, packed.scheme.values):
            stored = {name: packed.tensors[name].to(device) for name in self.streams}
            return form.arrange(stored, target, packed.shape)
        to, found, other = target.format, quantization_of(packed.scheme), quantization_of(target)
        alike = (found and found.type) == (other and other.type)
        if isinstance(to, UnstructuredFormat):
            tell_of_activations(target, device)
        if found is not None:  # of the rest ops take care
            self.require_tensors(packed)
            self.check_scales(packed)
        if to is self and found is not None and alike:
            same = PackedWeight(target, packed.shape, packed.tensors)
            self.check_scales(same)
            return same.to(device)
        turn = self.op(f"to_{to.name}")
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
        """Takes whole pieces as they are, where the ends are ends of pieces."""
        scheme, shape, scales = packed.scheme, packed.shape, packed.tensors.get(SCALE)
        own = None if scales is None else scales[rows.start : rows.stop].contiguous()
        if self.pieces is not None and self.pieces.are_whole(shape, rows, columns):
            taken = self.pieces.cut(self._held(packed), shape, rows, columns)
            return self.wrap(taken, scheme, (len(rows), len(columns)), own)
        if own is None:
            return super()._cut(packed, rows, columns)
        codes = self.codes(packed)[rows.start : rows.stop, columns.start : columns.stop]
        return self.pack_codes(codes.contiguous(), own, scheme)

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        """Puts pieces after pieces, where all parts but the last end with a row of pieces."""
        scheme, shape = parts[0].scheme, (sum(part.shape[0] for part in parts), parts[0].shape[1])
        held = [part.tensors[SCALE] for part in parts if SCALE in part.tensors]
        scales = torch.cat(held) if held else None
        if self.pieces is not None and not any(p.shape[0] % self.pieces.rows for p in parts[:-1]):
            return self.wrap(self.pieces.join(list(map(self._held, parts))), scheme, shape, scales)
        if scales is None:
            return super()._join(parts)
        return self.pack_codes(torch.cat([self.codes(part) for part in parts]), scales, scheme)

    def _held(self, packed: PackedWeight) -> tuple[Tensor, ...]:
        """What `pieces` cut and join: all streams."""
        return tuple(packed.tensors[name] for name in self.streams)
