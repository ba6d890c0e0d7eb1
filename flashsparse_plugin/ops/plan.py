# SPDX-License-Identifier: Apache-2.0
"""How a product is launched on a GPU, and how long it should take: asked of the planners in C++.

The ops plan their launches by the same code, so that what is estimated here is what runs. No GPU is
needed, and any GPU whose rates are known may be asked about. `override` gives products another
launch, to time it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ..gpu import Gpu
from .library import STATUS, ops


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
        experts: Of a layer of experts, how many there are, and how many of them a token has; shape
            is then that of y and x of one expert, and nbytes of all.
    """

    shape: tuple[int, int]
    tokens: int
    nbytes: int = 0
    values: str = "native"
    group: int = 0
    pattern: tuple[int, int, int] = (0, 0, 0)
    quantizes_x: bool = False
    experts: tuple[int, int] = (0, 0)


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


@contextmanager
def override(kernel: str, launch: Sequence[int]) -> Iterator[None]:
    """Products of this thread are launched as given, not as planned; for benchmarks.

        with override("sparse_24.few", candidates("sparse_24.few", product, gpu)[0].numbers):
            y = weight.linear(x)

    Products of the kernel's format take this kernel, whatever their number of tokens, and each of
    their launches takes these numbers. Overrides nest: the innermost of a format counts. A CUDA
    graph keeps what it captured. Whether a launch begins before the kernel ahead of it has ended
    (PDL) remains a matter of what ran before.

    Args:
        kernel: "<format>.<implementation>", as in `plan`.
        launch: `Launch.numbers`, in the order of `launch_fields`.

    Raises:
        RuntimeError: Here, for an unknown kernel, and without CUDA kernels; by the product, for
            values that the kernel does not multiply, and a launch that breaks a rule of it; at the
            end, if no product took the launch.
    """
    fields = launch_fields(kernel)
    if len(launch) != len(fields):
        raise RuntimeError(
            f"a launch of {kernel} has {len(fields)} numbers ({' '.join(fields)}), "
            f"not {len(launch)}"
        )
    if not STATUS["_C_cuda"].loaded:
        raise RuntimeError(f"{kernel} is a CUDA kernel. Those are {STATUS['_C_cuda'].reason}")
    ops.override_launch(kernel, list(launch))
    try:
        yield
    finally:
        launches = ops.end_override()
    if launches == 0:
        raise RuntimeError(f"no product was launched by {kernel} while it was given a launch")


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
    sizes += product.experts
    return sizes, product.values, product.quantizes_x, gpu.numbers
