# SPDX-License-Identifier: Apache-2.0
"""What multiplies a packed weight on a GPU, which of it an op takes, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, Protocol, TypeVar

import torch

from ..gpu import Gpu, unpacked_seconds
from ..ops.plan import Product, choose_kernel
from ..ops.plan import plan as plan_launch
from ..plan import LIBRARY, SPARSE, Implementation
from ..rules import FormatError, rules
from .options import Quantized


class _Scheme(Protocol):
    """What an estimate asks of a scheme."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def quantization(self) -> Quantized | None: ...


S = TypeVar("S", bound=_Scheme)


class Implementations(Generic[S]):
    """The part of a format that knows its implementations on a GPU.

    By default a format's planner in C++ answers, by the code that launches its kernels.
    """

    name: ClassVar[str]
    planner: ClassVar[str | None] = None
    """Whose kernels for GPUs these are, by name, where C++ plans their launches (`ops.plan`)."""
    sparse: ClassVar[str | None] = None
    """For people: what multiplies a packed weight on a GPU, where it may be unpacked for torch's
    library, too. None: it has one implementation there."""
    has_cpu_kernel: ClassVar[bool] = False
    """Whether a CPU multiplies this form by a kernel, also where a GPU would have to unpack it."""
    unpacking: ClassVar[tuple[float, float]] = (0.6, 1.0)
    """Share of a GPU's bandwidth that unpacking reaches, over what it reads and writes, and how
    many times as long a packed byte takes as an unpacked one."""

    def pattern(self, scheme: S) -> tuple[int, int, int] | None:
        """N, M and the vector length of the pattern that a scheme keeps; None: any zeros."""
        return None

    def implementations(self, scheme: S) -> Mapping[str, Implementation]:
        """What multiplies a weight on a GPU, in the order in which each is best as tokens grow."""
        if self.sparse is None:
            return {SPARSE: Implementation(None, f"the kernel of {self.name}")}
        unpacked = Implementation(None, "torch's own linear on the unpacked weight")
        return {SPARSE: Implementation(None, self.sparse), LIBRARY: unpacked}

    def product(
        self, scheme: S, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> Product:
        """What the format's planners in C++ are asked about (`planner`)."""
        found, pattern = scheme.quantization, self.pattern(scheme) or (0, 0, 0)
        if found is None:
            return Product(shape, tokens, nbytes, pattern=pattern)
        return Product(shape, tokens, nbytes, found.values, found.group or 0, pattern)

    def choose(self, scheme: S, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> str:
        """The implementation that the op takes on a GPU where no plan says which.

        By default what the format's planner says, or else the first of `implementations`. The
        arguments are those of `seconds`.
        """
        known = list(self.implementations(scheme))
        if self.planner is None:
            return known[0]
        found = choose_kernel(self.planner, self.product(scheme, shape, nbytes, tokens, gpu), gpu)
        return found if found in known else SPARSE

    def seconds(
        self,
        implementation: str,
        scheme: S,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        """Estimated time of one product on a GPU, beside the traffic of x and y.

        By default what the format's planner says of its kernels.

        Args:
            implementation: A key of `implementations`.
            scheme: The scheme of the weight.
            shape: (out_features, in_features).
            nbytes: Bytes of the packed weight.
            tokens: At least 1.
            gpu: What the estimate knows of the device.

        Raises:
            FormatError: Where the format has no cost model.
        """
        if implementation == LIBRARY:
            return self.library_seconds(scheme, shape, nbytes, tokens, gpu)
        if self.planner is not None:
            product = self.product(scheme, shape, nbytes, tokens, gpu)
            with rules():
                return plan_launch(f"{self.planner}.{implementation}", product, gpu).seconds
        raise FormatError(
            f"{self.name} has no cost model, so nothing can be estimated for a "
            f"{shape[0]}x{shape[1]} weight: measure it on the GPU with `flashsparse tune`"
        )

    def library_seconds(
        self, scheme: S, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        """`seconds` of unpacking the weight for torch's own linear, and of that."""
        size, (share, reading) = scheme.dtype.itemsize, self.unpacking
        return unpacked_seconds(shape, nbytes, tokens, gpu, share, size, reading)
