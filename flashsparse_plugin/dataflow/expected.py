# SPDX-License-Identifier: Apache-2.0
"""Whether a packed layer pays on a device: its time beside that of the dense layer.

Measured where a table has both, else by the cost models; never one of each. `auto`, `tune`,
`inspect` and `advise` all ask here.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from ..data_sheets import gpu_names
from ..formats import format_names, get_format
from ..gpu import Gpu, find_gpu, gpu_named
from ..packed import FormatError, Scheme, dtype_name
from . import model
from .model import Weight
from .table import DeviceKey, Table, read_own, shipped_table
from .tuner import packed_weight

BATCH = 8
"""Sequences that are decoded at once, where nobody says how many."""

ESTIMATED = 1.05
"""What counts as faster where it is estimated; benchmarks/results/estimates.csv has the errors."""

DENSITIES = tuple(1 - 0.05 * step for step in range(20))
"""Shares of kept values among which a win is looked for."""

SAMPLES = Path(__file__).with_name("samples.csv")

HERE, CPU = "this", "cpu"
"""Devices for `Target.named`, beside the names of GPUs."""


class Speed(NamedTuple):
    """How fast a packed layer is.

    Attributes:
        ratio: Time of the dense layer / time of the packed one.
        origin: Who measured both, such as "measured on an NVIDIA H200, 2026-11-20"; None where
            the cost models estimate them.
    """

    ratio: float
    origin: str | None = None

    @property
    def pays(self) -> bool:
        """Whether packing is faster, beyond the error of a measurement or of an estimate."""
        return self.ratio >= (ESTIMATED if self.origin is None else 1 + model.MARGIN)


@dataclass(frozen=True)
class Target:
    """What layers are packed for.

    Attributes:
        gpu: What is known of the GPU; None: a CPU.
        batch: Sequences that are decoded at once, which is tokens in a product.
        tables: What was measured on such a GPU, the user's first.
    """

    gpu: Gpu | None
    batch: int = BATCH
    tables: tuple[Table, ...] = ()

    @classmethod
    def named(cls, name: str, batch: int = BATCH) -> Target:
        """The target that a user calls "H200", "cpu", or "this" for the machine at hand.

        Raises:
            ValueError: For a name that is not known, and a batch below 1.
        """
        if batch < 1:
            raise ValueError(f"a batch has at least one sequence, not {batch}")
        if name == HERE:
            here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            return cls.of(here, torch.bfloat16, batch)
        if name == CPU:
            return cls(None, batch)
        gpu = gpu_named(name)
        if gpu is None:
            known = ", ".join([gpu_names(), CPU, HERE])
            raise ValueError(f"unknown device {name!r}: choose one of {known}")
        return cls(gpu, batch, _measured(shipped_table(gpu)))

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype, batch: int = BATCH) -> Target:
        """The target that a device of this machine is.

        Raises:
            TableError: Where there is a table for this GPU that cannot be read.
        """
        if device.type != "cuda":
            return cls(None, batch)
        return cls.of_key(DeviceKey.of(device), dtype_name(dtype), batch)

    @classmethod
    def of_key(cls, key: DeviceKey, dtype: str, batch: int = BATCH) -> Target:
        """The target that a GPU is of which measurements of this dtype are kept.

        Raises:
            TableError: Where there is a table for this GPU that cannot be read.
        """
        gpu = find_gpu(key.name, key.capability)
        return cls(gpu, batch, _measured(read_own(key, dtype), shipped_table(gpu, key)))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.gpu is None else "cuda")

    def speed(self, weight: Weight) -> Speed:
        """How fast a GPU multiplies a packed weight, in the form that it holds.

        Raises:
            FormatError: Where no table knows the weight, and its format has no cost model.
        """
        assert self.gpu is not None, "on a CPU bytes decide"
        dense = Weight(weight.shape)
        for table in self.tables:
            own, other = (table.seconds(each, self.batch) for each in (weight, dense))
            if own is not None and other is not None:
                return Speed(other / own, table.origin)
        own, other = (model.best_seconds(each, self.batch, self.gpu) for each in (weight, dense))
        return Speed(other / own)


def _measured(*tables: Table | None) -> tuple[Table, ...]:
    return tuple(table for table in tables if table is not None and table.source == "measured")


def typical_weight(shape: tuple[int, int], scheme: Scheme, density: float) -> Weight:
    """A weight by a scheme as a random one of this density would be.

    Args:
        shape: (out_features, in_features).
        scheme: How it is packed. A pattern may keep less than `density`.
        density: Share of the elements that are kept.
    """
    bits, kept = sample(scheme, round(density, 2))
    return Weight(shape, scheme, kept, max(int(bits * shape[0] * shape[1] / 8), 1))


@lru_cache(maxsize=1000)
def sample(scheme: Scheme, density: float) -> tuple[float, float]:
    """Bits a weight, and the density, of a random weight."""
    found = _samples().get((str(scheme), density))
    return packed_sample(scheme, density) if found is None else found


def packed_sample(scheme: Scheme, density: float) -> tuple[float, float]:
    """`sample` of a scheme and density that nobody has packed before."""
    side = 512
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small a weight, others only wait
    try:
        found = packed_weight((side, side), scheme, density)
    finally:
        torch.set_num_threads(threads)
    return 8 * found.nbytes / side**2, found.density


@cache
def _samples() -> dict[tuple[str, float], tuple[float, float]]:
    """What benchmarks/samples.py packed, by scheme and density."""
    with SAMPLES.open(encoding="utf-8") as file:
        return {
            (row["scheme"], float(row["density"])): (float(row["bits"]), float(row["kept"]))
            for row in csv.DictReader(file)
        }


def unstructured_schemes(dtype: torch.dtype = torch.bfloat16) -> list[Scheme]:
    """The schemes of all stored formats that need no options and drop zeros, wherever they are."""
    return [each for each in _schemes(dtype) if not each.format.keeps_zeros]


def exact_schemes(dtype: torch.dtype = torch.bfloat16) -> list[Scheme]:
    """The schemes of formats that need no zeros to be smaller than dense."""
    return [each for each in _schemes(dtype) if each.format.keeps_zeros]


def _schemes(dtype: torch.dtype) -> list[Scheme]:
    found = []
    for name in format_names():
        try:
            scheme = get_format(name).scheme(dtype)
        except FormatError:
            continue
        if scheme.format.pattern(scheme) is None:
            found.append(scheme)
    return found


def pays_from(
    shape: tuple[int, int], target: Target, schemes: Sequence[Scheme] | None = None
) -> float | None:
    """The least share of zeros from which on packing pays on a GPU, in steps of 5%.

    Args:
        shape: (out_features, in_features).
        target: A GPU and a batch.
        schemes: How it may be packed; None: `unstructured_schemes`.

    Returns:
        None where it pays at no share of zeros.
    """
    found, schemes = None, schemes or unstructured_schemes()
    for density in reversed(DENSITIES):
        if not any(_pays(shape, each, density, target) for each in schemes):
            break
        found = 1 - density
    return found


def _pays(shape: tuple[int, int], stored: Scheme, density: float, target: Target) -> bool:
    held = stored.format.runtime(stored, target.device)
    try:
        return target.speed(typical_weight(shape, held, density)).pays
    except FormatError:  # no cost model, and not measured
        return False
