# SPDX-License-Identifier: Apache-2.0
"""What estimates of time know of a GPU, and the dense product that every estimate is compared with.

The rates of each GPU that launches are fitted to are a row of kernels/cuda/shared/gpu.h. Those of
others are of data sheets (data_sheets.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .data_sheets import SHEETS, DataSheet, gpu_name
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
        unverified: Which of these neither a measurement nor a source backs.
    """

    name: str
    memory: float
    l2: float
    clock: float
    arithmetic: float
    multiprocessors: int
    capability: tuple[int, int]
    bus: float = 0.0
    unverified: tuple[str, ...] = ()

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


def _of_data_sheet(sheet: DataSheet) -> Gpu:
    """The rates of a GPU by its data sheet."""
    clock, bus = sheet.clock * 1e9, sheet.bandwidth * 1e9
    hbm = sheet.capability in ((8, 0), (9, 0), (10, 0))
    l2 = (_L2_HBM if hbm else _L2_GDDR) * sheet.sms * clock
    return Gpu(
        sheet.name,
        _BANDWIDTH * bus,
        l2,
        clock,
        _TENSOR * sheet.dense * 1e12,
        sheet.sms,
        sheet.capability,
        bus,
        (*sheet.unverified, "L2"),
    )


DATA_SHEETS = tuple(map(_of_data_sheet, SHEETS))
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
    name = gpu_name(text)
    return next((gpu for gpu in (*GPUS, *DATA_SHEETS) if gpu.name == name), None)


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
