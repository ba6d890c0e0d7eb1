# SPDX-License-Identifier: Apache-2.0
"""The kinds of packed weights that are timed in layers of models, by the names in results."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..dataflow.tuner import random_weight
from ..formats import get_format, pack
from ..formats.pattern.hybrid_24.layout import keep_dense
from ..formats.pattern.options import PatternOptions
from ..packed import PackedWeight, Scheme


class Kind(NamedTuple):
    """Zeros anywhere by their share, an N:M pattern by its options, or 2:4 beside dense blocks."""

    format: str
    sparsity: float | None = None
    options: dict[str, Any] = {}
    dense: float | None = None
    """Share of the blocks of 16 x 256 that are dense; the others follow 2:4."""

    @property
    def density(self) -> float:
        """Share of the elements that are kept."""
        if self.sparsity is not None:
            return round(1 - self.sparsity, 3)
        if self.dense is not None:
            return (1 + self.dense) / 2
        return self.options["n"] / self.options["m"]

    def scheme(self, dtype: torch.dtype) -> Scheme:
        """That of a GPU's form, which tables know a weight by."""
        format = get_format(self.format)
        return format.runtime(format.scheme(dtype, self.options), torch.device("cuda"))

    def pack(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> PackedWeight:
        """A random weight, packed as it is stored."""
        kept = 1.0 if self.sparsity is None else 1 - self.sparsity
        weight = random_weight(shape, kept, dtype, device)
        if self.dense is not None:
            weight = keep_dense(weight, self.dense)
        elif self.sparsity is None:
            names = ("n", "m", "vector_length")
            pattern = {name: self.options[name] for name in names if name in self.options}
            weight = PatternOptions(**pattern).keep_largest(weight).contiguous()
        return pack(weight, self.format, self.options)


def vectors(**options: Any) -> Kind:
    return Kind("nm_vector", None, options)


def beside_dense(dense: float, **options: Any) -> Kind:
    return Kind("hybrid_24", None, options, dense)


KINDS = {
    **{f"{share:.0%} tiled_csl": Kind("tiled_csl", share) for share in (0.5, 0.7, 0.8, 0.9)},
    **{f"{share:.0%} tiled_bitmap": Kind("tiled_bitmap", share) for share in (0.5, 0.7, 0.8, 0.9)},
    "50% int8": Kind("tiled_bitmap", 0.5, {"values": "int8"}),
    "50% W8A8": Kind("tiled_bitmap", 0.5, {"values": "int8", "activations": "int8"}),
    "2:4": vectors(n=2, m=4),
    "2:4 fp8_e4m3": vectors(n=2, m=4, values="fp8_e4m3"),
    "2:4 int8": vectors(n=2, m=4, values="int8"),
    "2:4 int8 by 128": vectors(n=2, m=4, values="int8", group=128),
    "2:4 int4 by 128": vectors(n=2, m=4, values="int4", group=128),
    "2:4 fp8 W8A8": vectors(n=2, m=4, values="fp8_e4m3", activations="fp8_e4m3"),
    "2:4 int8 W8A8": vectors(n=2, m=4, values="int8", activations="int8"),
    "8:32": vectors(n=8, m=32, vector_length=32),
    "8:32 fp8_e4m3": vectors(n=8, m=32, vector_length=32, values="fp8_e4m3"),
    "8:32 int8": vectors(n=8, m=32, vector_length=32, values="int8"),
}
HEADS = {
    "head, int8": vectors(n=1, m=1, vector_length=128, values="int8"),
    "head, fp8": vectors(n=1, m=1, vector_length=128, values="fp8_e4m3"),
}
"""Output heads that keep every weight."""

HYBRIDS = {
    "2:4 + 25% dense": beside_dense(0.25),
    "2:4 + 25% dense, fp8_e4m3": beside_dense(0.25, values="fp8_e4m3"),
    "2:4 + 50% dense, fp8_e4m3": beside_dense(0.5, values="fp8_e4m3"),
    "2:4 + 25% dense, int4 by 64": beside_dense(0.25, values="int4", group=64),
}
"""2:4 beside dense blocks, which no table of launches has yet."""


# Those that people choose among, by the names of results and of tables: kinds of KINDS.
CHOICES = {
    "50%": "50% tiled_bitmap",
    "50%, int8 x int8": "50% W8A8",
    "70%": "70% tiled_bitmap",
    "80%": "80% tiled_bitmap",
    "90%": "90% tiled_csl",
    "2:4": "2:4",
    "2:4, fp8_e4m3": "2:4 fp8_e4m3",
    "2:4, int8": "2:4 int8",
    "2:4, int4 by 128": "2:4 int4 by 128",
    "8:32, L=32": "8:32",
    "8:32, L=32, fp8_e4m3": "8:32 fp8_e4m3",
    "8:32, L=32, int8": "8:32 int8",
}
