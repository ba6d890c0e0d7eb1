# SPDX-License-Identifier: Apache-2.0
"""What the runtime forms of N:M patterns have in common; each is made of nm_vector's tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from ..gpu import Gpu, unpacked_seconds
from ..packed import Format, FormatError, PackedWeight, Scheme, rules
from ..plan import Implementation
from .nm_pattern import PatternOptions, options_of, pack_vectors

UNPACK_MEMORY = 0.6
"""Share of the bandwidth that unpacking reaches, over what it reads and writes."""


class PatternForm(Format):
    """A form in which kernels read vector-wise N:M weights; never written to disk.

    Attributes:
        holds: Which patterns the form can hold, as the end of "it holds ...".
    """

    version = 1
    on_disk = False
    Options = PatternOptions
    holds: ClassVar[str]

    @abstractmethod
    def fits(self, options: PatternOptions) -> bool:
        """Whether the form can hold a pattern."""

    @abstractmethod
    def arrange(
        self, weight_packed: Tensor, weight_index: Tensor, scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the tensors of nm_vector, valid ones, where they are.

        Raises:
            FormatError: For a pattern that the form cannot hold.
        """

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

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return options_of(scheme).keep_largest(weight)

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            stored = pack_vectors(weight.detach().cpu(), options_of(scheme))
        values, index = (tensor.to(weight.device) for tensor in stored)
        return self.arrange(values, index, scheme, (weight.shape[0], weight.shape[1]))

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).vector_length, options_of(scheme).m


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
            "sparse": Implementation(None, self.sparse),
            "library": Implementation(None, "torch's own linear on the unpacked weight"),
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
        if implementation == "sparse":
            return self.sparse_seconds(scheme, shape, nbytes, tokens, gpu)
        itemsize = scheme.dtype.itemsize
        return unpacked_seconds(shape, nbytes, tokens, gpu, UNPACK_MEMORY, itemsize)
