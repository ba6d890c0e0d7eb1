# SPDX-License-Identifier: Apache-2.0
"""What estimates of time know of a GPU, and the dense product that every estimate is compared with.

The rates of each GPU that launches are fitted to are a row of kernels/cuda/shared/gpu.h. Those of
others are of data sheets, below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .ops.library import ops


@dataclass(frozen=True)
class Gpu:
    """Constants of one class of GPUs.

    Attributes:
        name: Part of what torch calls such a GPU.
        memory: Bytes a second that a kernel reads from memory.
        l2: Bytes a second that a kernel reads from L2.
        clock: Hertz under load.
        arithmetic: Operations a second that the library reaches on 16-bit products.
        multiprocessors: Their number.
        capability: The compute capability.
        bus: Bytes a second that memory gives by its clock and width; 0: not known.
    """

    name: str
    memory: float
    l2: float
    clock: float
    arithmetic: float
    multiprocessors: int
    capability: tuple[int, int]
    bus: float = 0.0

    @classmethod
    def known(cls, name: str) -> Gpu:
        """The GPU of a row of the table."""
        major, minor, count, bus, memory, l2, clock, arithmetic = ops.known_gpu(name)
        capability = (int(major), int(minor))
        return cls(name, memory, l2, clock, arithmetic, int(count), capability, bus)

    @property
    def numbers(self) -> list[float]:
        """As ops take a GPU."""
        rates = (self.bus, self.memory, self.l2, self.clock, self.arithmetic)
        return [*map(float, (*self.capability, self.multiprocessors)), *rates]

    @property
    def fma_units(self) -> int:
        """Of a multiprocessor, for float32."""
        return 64 if self.capability == (8, 0) else 128

    @property
    def float32_peak(self) -> float:
        """Operations a second that the FMA units could do."""
        return 2.0 * self.fma_units * self.multiprocessors * self.clock


GPUS = tuple(Gpu.known(name) for name in ops.known_gpus().split())

ITEMSIZE = 2  # bytes of float16 and bfloat16

# Seconds. Measured on an H200: a launch in a CUDA graph, and all that the library takes beside its
# bytes. Estimated: from the launch to the first sum.
LAUNCH, LIBRARY_FIXED, BEGIN = 2.1e-6, 4.0e-6, 0.8e-6
LIBRARY_ROWS, LIBRARY_TOKENS = 128, 64  # of a tile
LIBRARY_MEMORY = 0.93  # share of the bandwidth that the library reaches


# What kernels reach of a data sheet's rates, as the H200 and the A100 do: of the bandwidth and of
# the tensor cores; and bytes a clock that an SM reads from the L2: with HBM, and with GDDR.
_BANDWIDTH, _TENSOR, _L2_HBM, _L2_GDDR = 0.9, 0.75, 30.0, 16.0


def _of_data_sheet(
    name: str, capability: tuple[int, int], bandwidth: float, count: int, clock: float, dense: float
) -> Gpu:
    """A GPU by its data sheet.

    Args:
        name: Part of what torch calls such a GPU, as whole words.
        capability: The compute capability.
        bandwidth: GB/s.
        count: Of SMs.
        clock: Boost, GHz.
        dense: TFLOPS of bfloat16 without sparsity, summed in float32.
    """
    hbm = capability in ((8, 0), (9, 0), (10, 0))
    l2 = (_L2_HBM if hbm else _L2_GDDR) * count * clock * 1e9
    memory, tensor = _BANDWIDTH * bandwidth * 1e9, _TENSOR * dense * 1e12
    return Gpu(name, memory, l2, clock * 1e9, tensor, count, capability, bandwidth * 1e9)


DATA_SHEETS = (
    # NVIDIA H800 and H20 Tensor Core GPU
    _of_data_sheet("H800", (9, 0), 3350, 132, 1.98, 989),
    _of_data_sheet("H20", (9, 0), 4000, 78, 1.98, 148),
    # NVIDIA DGX B200, one of its eight
    _of_data_sheet("B200", (10, 0), 8000, 148, 1.965, 2250),
    # NVIDIA A100 80GB, of which the A800 differs in NVLink alone
    _of_data_sheet("A800", (8, 0), 2039, 108, 1.41, 312),
    # NVIDIA A10G, for AWS
    _of_data_sheet("A10G", (8, 6), 600, 80, 1.71, 70),
    # NVIDIA RTX A6000
    _of_data_sheet("RTX A6000", (8, 6), 768, 84, 1.80, 154.8),
    # NVIDIA L4, L40S
    _of_data_sheet("L4", (8, 9), 300, 58, 2.04, 121),
    _of_data_sheet("L40S", (8, 9), 864, 142, 2.52, 362),
    # NVIDIA Ada GPU Architecture: RTX 4090, RTX 6000 Ada Generation
    _of_data_sheet("RTX 4090", (8, 9), 1008, 128, 2.52, 165.2),
    _of_data_sheet("RTX 6000 Ada", (8, 9), 960, 142, 2.505, 364.2),
    # NVIDIA RTX Blackwell GPU Architecture
    _of_data_sheet("RTX 5090", (12, 0), 1792, 170, 2.407, 209.5),
)
"""GPUs on which nothing was measured."""


def find_gpu(name: str, capability: tuple[int, int]) -> Gpu:
    """The constants for a GPU, by its name, or else those of its generation in its capability.

    A GPU of a generation that was measured, such as the H800, is taken for the measured one, whose
    tables it shares.
    """
    for gpu in GPUS:
        if gpu.name.lower() in name.lower():
            return gpu
    for gpu in DATA_SHEETS if capability not in {each.capability for each in GPUS} else ():
        if gpu.capability == capability and re.search(rf"\b{gpu.name}\b", name, re.I):
            return gpu
    wanted = "H100" if capability >= (9, 0) else "A100"
    return replace(next(gpu for gpu in GPUS if gpu.name == wanted), capability=capability)


def gpu_named(text: str) -> Gpu | None:
    """The GPU that a user calls "H100", "rtx4090" or "4090"; None for none that is known."""

    def plain(name: str) -> str:
        return re.sub(r"[\s_-]|nvidia|rtx|generation", "", name.lower())

    return next((gpu for gpu in (*GPUS, *DATA_SHEETS) if plain(gpu.name) == plain(text)), None)


def library_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """Estimated time of the library's product of a dense 16-bit weight, beside x and y."""
    out_features, in_features = shape
    nbytes = out_features * in_features * ITEMSIZE
    padded = LIBRARY_TOKENS * -(-tokens // LIBRARY_TOKENS)
    x_bytes = ITEMSIZE * padded * in_features * out_features / LIBRARY_ROWS / 4
    memory = max(nbytes / (LIBRARY_MEMORY * gpu.memory), (nbytes + x_bytes) / gpu.l2)
    arithmetic = 2.0 * padded * in_features * out_features / gpu.arithmetic
    return LIBRARY_FIXED + max(memory, arithmetic)


def unpacked_seconds(
    shape: tuple[int, int],
    nbytes: int,
    tokens: int,
    gpu: Gpu,
    reach: float,
    itemsize: int = ITEMSIZE,
    reading: float = 1.0,
) -> float:
    """Estimated time of unpacking a weight for the library's product, and of that product.

    Args:
        shape: (out_features, in_features).
        nbytes: Bytes of the packed weight.
        tokens: At least 1.
        gpu: What the estimate knows of the device.
        reach: Share of the bandwidth that unpacking reaches, over what it reads and writes.
        itemsize: Bytes of an unpacked value.
        reading: How many times as long a byte takes that is read as one that is written.
    """
    moved = reading * nbytes + shape[0] * shape[1] * itemsize
    return moved / (reach * gpu.memory) + LAUNCH + library_seconds(shape, tokens, gpu)
