# SPDX-License-Identifier: Apache-2.0
"""What the forms of N:M patterns have in common: the one on disk, and those that kernels read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...packed import Format, FormatError, PackedWeight, Scheme
from ...plan import Plan, limits_of
from ..values.quantization import require_quantized, tell_of_activations
from .options import (
    PatternOptions,
    conform_to,
    options_of,
    store,
    store_codes,
    stored_codes,
    value_arguments,
)
from .parts import cut, join

UNPACKING = 0.6
"""Share of the bandwidth that unpacking reaches, over what it reads and writes."""


class PatternFormat(Format):
    """A form of vector-wise N:M weights, which is made from and into the tensors of nm_vector.

    Attributes:
        holds: Which patterns the form can hold, as the end of "it holds ...".
        linear_op: The op that multiplies.
        streams: Names of the tensors that it takes, beside scales.
        limits: How many of a plan's limits it takes; see `limits_of`.
    """

    version = 1
    unpacking = (UNPACKING, 1.0)
    Options = PatternOptions
    holds: ClassVar[str]
    linear_op: ClassVar[Any]
    streams: ClassVar[tuple[str, ...]]
    limits: ClassVar[int] = 0

    @abstractmethod
    def fits(self, options: PatternOptions) -> bool:
        """Whether the form can hold a pattern."""

    @abstractmethod
    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the tensors of nm_vector by name, valid ones, where they are.

        Raises:
            FormatError: For a pattern that the form cannot hold.
        """

    @abstractmethod
    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        """The inverse of `arrange`: the tensors of nm_vector by name, codes as they are."""

    def require_fit(self, scheme: Scheme, shape: tuple[int, int]) -> PatternOptions:
        """Returns the pattern of a scheme.

        Raises:
            FormatError: For a pattern that the form cannot hold.
        """
        options = options_of(scheme)
        if not self.fits(options):
            raise FormatError(
                f"{self.name} cannot hold a weight of shape {list(shape)} with {options.title}: it "
                f"holds {self.holds}. Pack to nm_vector, which holds any pattern"
            )
        return options

    def takes_codes(self, values: str, group: int | None) -> bool:
        return True

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return conform_to(options_of(scheme), weight)

    def pattern(self, scheme: Scheme) -> tuple[int, int, int]:
        return options_of(scheme).numbers

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).grain

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        shape = (weight.shape[0], weight.shape[1])
        return self.arrange(store(weight, self.require_fit(scheme, shape)), scheme, shape)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        shape = (codes.shape[0], codes.shape[1])
        numbers, scales = require_quantized(scheme).require_codes(codes, scales, scheme)
        stored = store_codes(numbers, scales, self.require_fit(scheme, shape))
        return self.arrange(stored, scheme, shape)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """To any pattern that the weight follows; codes of one type and group stay as they are."""
        if not isinstance(target.format, PatternFormat):
            return super().transcode(packed, target, device)
        tensors: Mapping[str, Tensor]
        tensors = {name: each.to(device) for name, each in self.stored(packed).items()}
        old, new = options_of(packed.scheme), options_of(target)
        if (old, packed.dtype) != (new, target.dtype):
            tensors = self._restored(packed, tensors, target)
        if not target.format.on_disk:
            tell_of_activations(target, device)
        return target.format.arrange(tensors, target, packed.shape)

    def _restored(
        self, packed: PackedWeight, stored: Mapping[str, Tensor], target: Scheme
    ) -> Mapping[str, Tensor]:
        """The tensors of nm_vector by another scheme, on the device of its own ones."""
        own, new = options_of(packed.scheme), options_of(target)
        device = stored["weight_packed"].device
        if new.value_type is None or (own.values, own.group) != (new.values, new.group):
            return store(self.unpack(packed).to(device), new)
        codes = stored_codes(stored, own, packed.shape)
        scales = stored["weight_scale"]
        return store_codes(*require_quantized(target).require_codes(codes, scales, target), new)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        held = map(tensors.__getitem__, self.streams)
        return self.linear_op(x, *held, shape[0], *self.told(scheme, tensors, bias, plan))

    def told(
        self,
        scheme: Scheme,
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> tuple[Any, ...]:
        """What the op is told behind out_features."""
        return (
            *options_of(scheme).numbers,
            scheme.dtype_number,
            bias,
            *limits_of(plan, self.limits),
            *value_arguments(scheme, tensors),
        )

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        options = options_of(packed.scheme)
        part = cut(self.stored(packed), options, rows, columns, packed.shape[1])
        return self.arrange(part, packed.scheme, (len(rows), len(columns)))

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        stored = join([self.stored(part) for part in parts], options_of(parts[0].scheme))
        return self.arrange(stored, parts[0].scheme, shape)
