# SPDX-License-Identifier: Apache-2.0
"""What the forms of N:M patterns have in common: the one on disk, and those that kernels read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu, unpacked_seconds
from ...ops.plan import Product
from ...packed import FormatError, PackedWeight, Scheme
from ...plan import LIBRARY, SPARSE, Implementation
from ..values.coded import CodedFormat
from .options import PatternOptions, conform_to, options_of, store
from .parts import cut, join

UNPACK_MEMORY = 0.6
"""Share of the bandwidth that unpacking reaches, over what it reads and writes."""


class PatternFormat(CodedFormat):
    """A format whose options are an N:M pattern and a type of values."""

    Options = PatternOptions

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return conform_to(options_of(scheme), weight)

    def pattern(self, scheme: Scheme) -> tuple[int, int, int]:
        return options_of(scheme).numbers

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).grain


class RuntimeForm(PatternFormat):
    """A form in which kernels read vector-wise N:M weights; never written to disk.

    It is turned from and into the tensors of nm_vector.

    Attributes:
        holds: Which patterns the form can hold, as the end of "it holds ...".
        sparse: The hardware that multiplies it directly on a GPU, for messages; otherwise it is
            unpacked for torch's library. None: it has no kernel for GPUs.
        reading: How many times as long unpacking takes for a packed byte as for an unpacked one.
    """

    version = 1
    on_disk = False
    holds: ClassVar[str]
    sparse: ClassVar[str | None] = None
    reading: ClassVar[float] = 1.0

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

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        options = self.require_fit(scheme, (weight.shape[0], weight.shape[1]))
        stored = store(weight, options)
        return self.arrange(stored, scheme, (weight.shape[0], weight.shape[1]))

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Gives values and codes back as they are, from where any pattern can be reached."""
        if not (isinstance(target.format, PatternFormat) and target.format.on_disk):
            return super().transcode(packed, target, device)
        own = target.format.scheme(packed.dtype, packed.scheme.values)
        return PackedWeight(own, packed.shape, self.stored(packed)).transcode(target, device)

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        options = options_of(packed.scheme)
        part = cut(self.stored(packed), options, rows, columns, packed.shape[1])
        return self.arrange(part, packed.scheme, (len(rows), len(columns)))

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        return self.arrange(join([self.stored(part) for part in parts]), parts[0].scheme, shape)

    def product(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> Product:
        options = options_of(scheme)
        return Product(
            shape,
            tokens,
            nbytes,
            values=options.values,
            group=options.group or 0,
            pattern=options.numbers,
        )

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        if self.sparse is None:
            return super().implementations(scheme)
        return {
            SPARSE: Implementation(None, self.sparse),
            LIBRARY: Implementation(None, "torch's own linear on the unpacked weight"),
        }

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        if implementation == LIBRARY:
            return unpacked_seconds(
                shape,
                nbytes,
                tokens,
                gpu,
                reach=UNPACK_MEMORY,
                itemsize=scheme.dtype.itemsize,
                reading=self.reading,
            )
        return super().seconds(implementation, scheme, shape, nbytes, tokens, gpu)
