# SPDX-License-Identifier: Apache-2.0
"""How a product is launched on a GPU, and how long it should take: asked of the planners in C++.

The ops plan their launches by the same code, so that what is estimated here is what runs. No GPU is
needed, and any GPU whose rates are known may be asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..gpu import Gpu
from .library import ops


@dataclass(frozen=True)
class Product:
    """A product of a weight and some tokens.

    Attributes:
        shape: (out_features, in_features).
        tokens: At least 1.
        nbytes: Of the packed weight; 0 for a dense one.
        values: How values are stored: "native", or the type of their codes, such as "int8".
        group: Columns that share a scale; 0: all of a row, or there are no scales.
        pattern: N, M and the vector length of an N:M pattern.
        quantizes_x: Whether x is quantized to `values`, too.
    """

    shape: tuple[int, int]
    tokens: int
    nbytes: int = 0
    values: str = "native"
    group: int = 0
    pattern: tuple[int, int, int] = (0, 0, 0)
    quantizes_x: bool = False


class Launch(NamedTuple):
    """One way to launch a kernel.

    Attributes:
        numbers: What the kernel is launched by, as `launch_fields` names them.
        seconds: What the product should take by it, beside the traffic of x and y.
    """

    numbers: tuple[int, ...]
    seconds: float


def plan(kernel: str, product: Product, gpu: Gpu) -> Launch:
    """The launch that an op would choose, the first where it needs several; the time of all.

    Args:
        kernel: "<format>.<implementation>", such as "sparse_24.few" or "dense.gemv".
        product: What is multiplied.
        gpu: The GPU, here or not.

    Raises:
        RuntimeError: For an unknown kernel, and a product or GPU that the kernel is not for.
    """
    numbers, microseconds = ops.plan(kernel, *_arguments(product, gpu))
    return Launch(tuple(numbers), microseconds * 1e-6)


def candidates(kernel: str, product: Product, gpu: Gpu) -> list[Launch]:
    """Every legal launch that the planner compares; see `plan`."""
    numbers, microseconds = ops.candidates(kernel, *_arguments(product, gpu))
    width = len(launch_fields(kernel))
    return [
        Launch(tuple(numbers[at * width : (at + 1) * width]), each * 1e-6)
        for at, each in enumerate(microseconds)
    ]


def choose_kernel(format: str, product: Product, gpu: Gpu) -> str:
    """The implementation that a format's op takes where no table says otherwise.

    Returns:
        "sparse", "few", "many", "packed", or "library", which unpacks the weight.

    Raises:
        RuntimeError: For a format without kernels on GPUs.
    """
    return ops.choose_kernel(format, *_arguments(product, gpu))


def launch_fields(kernel: str) -> Sequence[str]:
    """The names of the numbers of a kernel's launch, in their order."""
    return ops.launch_fields(kernel).split()


def compiled_shapes(kernel: str) -> list[dict[str, int]]:
    """What a kernel is compiled for; a launch's "shape" (nm_spmm: "kernel") is an index of it."""
    names, numbers = ops.compiled_shapes(kernel)
    fields = names.split()
    starts = range(0, len(numbers), len(fields))
    return [dict(zip(fields, numbers[at : at + len(fields)], strict=True)) for at in starts]


def _arguments(product: Product, gpu: Gpu) -> tuple[list[int], str, bool, list[float]]:
    sizes = [*product.shape, product.tokens, product.nbytes, *product.pattern, product.group]
    return sizes, product.values, product.quantizes_x, gpu.numbers
