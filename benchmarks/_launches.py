# SPDX-License-Identifier: Apache-2.0
"""The launches of kernels that are worth measuring: those that the planners compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import _formats
import torch
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.gpu import GPUS, Gpu, find_gpu
from flashsparse_plugin.ops.plan import Product, candidates, launch_fields, override, plan

KERNELS = (
    *("dense.gemv", "dense.flat_gemm"),
    *("tiled_csl.sparse", "tiled_bitmap.few", "tiled_bitmap.many"),
    *("exact_units.few", "exact_units.many", "hybrid_units.few", "hybrid_units.many"),
    *("sparse_24.few", "sparse_24.many"),
    *("nm_gather.few", "nm_gather.many", "nm_gather.packed", "nm_spmm.sparse"),
)
MOST = 24  # launches of a kernel
Arguments, Result = ParamSpec("Arguments"), TypeVar("Result")


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        kernel: Its name, as planners know it.
        numbers: What it is launched by.
        seconds: What the planner expects.
    """

    kernel: str
    numbers: tuple[int, ...]
    seconds: float = 0.0

    def of(self, multiply: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """`multiply`, whose product is launched so."""

        def launched(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            with override(self.kernel, self.numbers):
                return multiply(*arguments, **options)

        return launched

    def linear(self, packed: fs.PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        return self.of(_formats.multiply)(packed, x, bias)

    @property
    def text(self) -> str:
        """Its numbers and their names."""
        names = launch_fields(self.kernel)
        return " ".join(f"{name}={n}" for name, n in zip(names, self.numbers, strict=True))

    def __str__(self) -> str:
        return f"{self.kernel} {self.text}"


def gpu_of(device: torch.device) -> Gpu:
    """What planners know of a device; of a CPU, an H200."""
    if device.type != "cuda":
        return GPUS[0]
    properties = torch.cuda.get_device_properties(device)
    return find_gpu(properties.name, (properties.major, properties.minor))


def launches_of(kernel: str, product: Product, gpu: Gpu, most: int = MOST) -> list[Launch]:
    """The planned launch, then the cheapest of each compiled shape, then the cheapest of all.

    Raises:
        RuntimeError: Where the kernel cannot have such a product.
    """
    planned = plan(kernel, product, gpu)
    found = sorted(candidates(kernel, product, gpu), key=lambda each: each.seconds)
    first = {each.numbers[0]: each for each in reversed(found)}
    shapes = sorted(first.values(), key=lambda each: each.seconds)
    ordered = dict.fromkeys(each.numbers for each in (planned, *shapes, *found))
    seconds = {each.numbers: each.seconds for each in (*found, planned)}
    return [Launch(kernel, numbers, seconds[numbers]) for numbers in list(ordered)[:most]]


def launches(
    packed: fs.PackedWeight,
    tokens: int,
    device: torch.device,
    kernels: Iterable[str] = KERNELS,
    most: int = MOST,
    quantizes_x: bool = False,
) -> Sequence[Launch]:
    """Those of every kernel that multiplies the weight on this GPU; none on a CPU.

    quantizes_x: Whether x is quantized to the weight's type, even if its scheme does not say so.
    """
    form, gpu = packed.format, gpu_of(device)
    if form.planner is None or device.type != "cuda":
        return ()
    product = form.product(packed.scheme, packed.shape, packed.nbytes, tokens, gpu)
    product = replace(product, quantizes_x=quantizes_x or product.quantizes_x)
    found: list[Launch] = []
    for kernel in kernels:
        if kernel.split(".")[0] == form.planner:
            try:
                found += launches_of(kernel, product, gpu, most)
            except RuntimeError:  # the kernel is not for such values, or not for the GPU
                continue
    return found
