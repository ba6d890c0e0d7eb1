# SPDX-License-Identifier: Apache-2.0
"""How long each implementation should take: estimates, not measurements.

They decide about dense layers where no table was measured, and compare formats. What our kernels
take the planners of their launches say (`ops.plan`), fitted to measurements on an H200, and what
the library takes `gpu.library_seconds`; other GPUs are estimated from their rates. Packed weights
are asked by way of their format.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..gpu import ITEMSIZE, Gpu, library_seconds
from ..ops.plan import Product, plan
from ..packed import PackedWeight, Scheme
from ..plan import MANY, SPARSE, Implementation

DENSE: Mapping[str, Implementation] = {
    "gemv": Implementation(8, "gemv: CUDA cores"),
    "flat_gemm": Implementation(64, "flat_gemm: tensor cores, padded to 8 tokens"),
    "library": Implementation(None, "torch's own linear"),
}
"""Implementations of a dense layer in the order in which they become best as tokens grow."""

BUCKETS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128, 129),
    *(192, 256, 384, 512, 1024, 2048),
)
"""Numbers of tokens that are looked at; behind 64 and 128 kernels begin another tile."""

# What a kernel for dense layers must be faster by than the library to be used in its place: where
# both were measured, and where this model estimates both. Whatever it expected to be faster by more
# was faster on an H200.
MARGIN, DOUBT = 0.02, 0.12

# Seconds that unpacking for the library must save. It is several calls for the host, some 60 us
# more than a kernel of ours outside of CUDA graphs, by tokens a second of SmolLM2-135M on an H200
# (benchmarks/gpu/generate.py): too much for what it saves of the GPU's time in a tiny layer.
UNPACKING = 1e-6


@dataclass(frozen=True)
class Weight:
    """What a decision depends on.

    Attributes:
        shape: (out_features, in_features).
        scheme: The scheme of a packed weight; None for a dense one.
        density: Share of the elements that are kept.
        nbytes: Bytes of the weight in the form in which it is held; derived for a dense weight.

    Raises:
        ValueError: Where `nbytes` of a packed weight are missing.
    """

    shape: tuple[int, int]
    scheme: Scheme | None = None
    density: float = 1.0
    nbytes: int = 0

    def __post_init__(self) -> None:
        if self.scheme is None:
            object.__setattr__(self, "nbytes", math.prod(self.shape) * ITEMSIZE)
        elif self.nbytes < 1:
            raise ValueError(
                f"{self}: the bytes of a packed weight must be given; Weight.of(packed) counts them"
            )

    @classmethod
    def of(cls, packed: PackedWeight) -> Weight:
        return cls(packed.shape, packed.scheme, packed.density, packed.nbytes)

    @property
    def format(self) -> str:
        """Name of the packed format, or "dense"."""
        return "dense" if self.scheme is None else self.scheme.format.name

    @property
    def implementations(self) -> Mapping[str, Implementation]:
        return implementations_of(self.scheme)

    def __str__(self) -> str:
        text = f"{self.shape[0]}x{self.shape[1]}"
        if self.scheme is None:
            return text
        return f"{text} {self.scheme.title} {self.density:.0%} kept"


def implementations_of(
    scheme: Scheme | None, named: Collection[str] = ()
) -> Mapping[str, Implementation]:
    """What multiplies a dense weight (None) or a packed one.

    Args:
        scheme: The scheme of the weight.
        named: Implementations that a table or a plan names. Those of a format with kernels for few
            and for many tokens may name both as one, `SPARSE`, as tables of old do.
    """
    if scheme is None:
        return DENSE
    known = scheme.format.implementations(scheme)
    if SPARSE in named and MANY in known:
        either = Implementation(
            None, f"the sparse kernels of {scheme.format.name}, by its own rule"
        )
        last = list(known)[-1]
        return {SPARSE: either, last: known[last]}
    return known


def seconds(implementation: str, weight: Weight, tokens: int, gpu: Gpu) -> float:
    """Estimated time of one call; infinite for more tokens than it takes, and where it is not.

    Args:
        implementation: A key of `weight.implementations`, or `SPARSE`.
        weight: What is multiplied.
        tokens: At least 1.
        gpu: One of GPUS.

    Raises:
        FormatError: For a packed weight whose format has no cost model.
    """
    most, _, capability = implementations_of(weight.scheme, [implementation])[implementation]
    if (most is not None and tokens > most) or capability not in (None, gpu.capability):
        return math.inf
    activations = ITEMSIZE * tokens * sum(weight.shape) / gpu.memory
    if weight.scheme is not None:
        own = weight.scheme.format.seconds(
            implementation, weight.scheme, weight.shape, weight.nbytes, tokens, gpu
        )
    elif implementation == "library":
        own = library_seconds(weight.shape, tokens, gpu)
    else:
        own = plan(f"dense.{implementation}", Product(weight.shape, tokens), gpu).seconds
    return activations + own


def times(
    weight: Weight, gpu: Gpu, buckets: Sequence[int] = BUCKETS
) -> dict[int, dict[str, float]]:
    """Estimated seconds by tokens: of all that multiplies a dense weight, or of what its op takes.

    A packed weight's op chooses by itself where nothing was measured.
    """
    return {
        tokens: {name: seconds(name, weight, tokens, gpu) for name in _used(weight, tokens, gpu)}
        for tokens in buckets
    }


def _used(weight: Weight, tokens: int, gpu: Gpu) -> Iterable[str]:
    if weight.scheme is None:
        return weight.implementations
    format = weight.scheme.format
    return [format.choose(weight.scheme, weight.shape, weight.nbytes, tokens, gpu)]


def best_seconds(weight: Weight, tokens: int, gpu: Gpu) -> float:
    """Estimated time of a product, with x and y, as a layer does it for which there is no table.

    Raises:
        FormatError: For a packed weight whose format has no cost model.
    """
    return min(seconds(name, weight, tokens, gpu) for name in _used(weight, tokens, gpu))


def inflections(found: Mapping[int, Mapping[str, float]], order: Sequence[str]) -> list[int]:
    """Where, as tokens grow, one implementation gives way to the next: M1 and M2 of the paper.

    The paper walks up from one token until the next implementation is faster once; a measurement
    that is noisy by a per cent would stop it anywhere. So the cuts are those whose product of times
    over all numbers of tokens is smallest.

    Args:
        found: Seconds of the implementations, by tokens; infinite or missing where one takes fewer.
        order: The implementations as they follow one another.

    Returns:
        For each of `order` but the first, the number of tokens from which on it is used: a key of
        `found`, or one beyond the last of them where it never is.
    """
    tokens = sorted(found)
    # best[i]: the least sum of logarithms over the first i numbers of tokens with the
    # implementations so far, and where each of them begins.
    best: list[tuple[float, list[int]]] = [(0.0, []), *[(math.inf, [])] * len(tokens)]
    for name in order:
        logs = [math.log(found[count].get(name, math.inf)) for count in tokens]
        following = []
        for end in range(len(tokens) + 1):
            options = [
                (cost + sum(logs[begin:end]), [*begins, begin])
                for begin, (cost, begins) in enumerate(best[: end + 1])
            ]
            following.append(min(options))
        best = following
    beyond = tokens[-1] + 1
    return [tokens[begin] if begin < len(tokens) else beyond for begin in best[-1][1][1:]]
