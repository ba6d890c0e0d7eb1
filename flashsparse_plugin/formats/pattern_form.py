# SPDX-License-Identifier: Apache-2.0
"""What the forms of N:M patterns have in common: the one on disk, and those that kernels read."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..gpu import Gpu, unpacked_seconds
from ..packed import Format, FormatError, PackedWeight, Scheme
from ..plan import LIBRARY, SPARSE, Implementation, Plan
from .activations import multiply_rounded, rounded_tokens
from .nm_parts import cut, join
from .nm_pattern import PatternOptions, conform_to, options_of, store

UNPACK_MEMORY = 0.6
"""Share of the bandwidth that unpacking reaches, over what it reads and writes."""


logger = logging.getLogger(__name__)


class PatternFormat(Format):
    """A format whose options are an N:M pattern and a type of values."""

    Options = PatternOptions

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return conform_to(options_of(scheme), weight)

    def is_exact(self, scheme: Scheme) -> bool:
        return options_of(scheme).value_type is None

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).grain

    def round_activations(self, x: Tensor, scheme: Scheme) -> Tensor:
        values = options_of(scheme).activation_type
        return x if values is None else rounded_tokens(x, values)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        if options_of(scheme).activation_type is None:
            return self.multiply(x, scheme, shape, tensors, bias, plan)
        return self.multiply_rounded(x, scheme, shape, tensors, bias, plan)

    @abstractmethod
    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear`, of activations as they are."""

    def multiply_rounded(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear`, of activations that are rounded to codes first."""
        values = options_of(scheme).activation_type
        assert values is not None
        return multiply_rounded(
            x, values, bias, lambda codes: self.multiply(codes, scheme, shape, tensors, None, plan)
        )


class PatternStorage(PatternFormat):
    """The form of patterns on disk, from which and into which runtime forms are turned."""

    @abstractmethod
    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        """Packs codes as they are, with their scales.

        Args:
            codes: [out_features, in_features], zeros included: numbers in a floating dtype that
                holds them exactly, int8, or the bits of fp8_e4m3 in uint8.
            scales: [out_features, groups], finite and not negative.
            scheme: With a value type other than native.

        Raises:
            FormatError: For codes that do not follow the pattern or are none of the type, or scales
                that the scheme cannot hold.
        """


class PatternForm(PatternFormat):
    """A form in which kernels read vector-wise N:M weights; never written to disk.

    Attributes:
        holds: Which patterns the form can hold, as the end of "it holds ...".
    """

    version = 1
    on_disk = False
    holds: ClassVar[str]

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

    def multiplies_codes(self, scheme: Scheme, device: torch.device) -> bool:
        """Whether a device has a kernel of this form for activations rounded to codes.

        All others are given codes as 16-bit numbers, or float32 ones on a CPU: that is as exact.
        """
        return False

    def tell_of_activations(self, scheme: Scheme, device: torch.device) -> None:
        """Logs once what becomes of activations that are rounded, where they have no kernel."""
        if options_of(scheme).activation_type and not self.multiplies_codes(scheme, device):
            _tell_of_activations(self.name, options_of(scheme).activations, device.type)

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
        if not isinstance(target.format, PatternStorage):
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


class CudaPatternForm(PatternForm):
    """A form with a kernel that multiplies it as it lies, beside unpacking for torch's library.

    Attributes:
        sparse: What multiplies it as it lies, for people.
    """

    sparse: ClassVar[str]

    @abstractmethod
    def sparse_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        """What a product by the form's own kernel should take, in seconds."""

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
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
            itemsize = scheme.dtype.itemsize
            return unpacked_seconds(shape, nbytes, tokens, gpu, UNPACK_MEMORY, itemsize)
        return self.sparse_seconds(scheme, shape, nbytes, tokens, gpu)


@functools.cache
def _tell_of_activations(form: str, activations: str, device: str) -> None:
    logger.info(
        "activations are rounded to %s by token, and multiplied in %s: %s has no kernel on this %s "
        "device for codes on both sides",
        *(activations, "32 bits" if device == "cpu" else "16 bits", form, device),
    )
