# SPDX-License-Identifier: Apache-2.0
"""How long each implementation should take, from bytes and latencies: a model, not a measurement.

It decides where no table was measured. A product of few tokens takes the longest of

    the weight's bytes from memory, all bytes from L2 (x comes from there, once a block of rows),
    the instructions that gemv issues, and for the library its arithmetic,

and beside that a launch and the joining of sums. What a kernel takes was fitted to measurements on
an H200; latencies, and what other GPUs have, are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..packed import PackedWeight

DENSE: Mapping[str, int | None] = {"gemv": 8, "flat_gemm": 64, "library": None}
"""Implementations of a dense layer and the most tokens that each takes, in the order in which they
become best as tokens grow: ops.gemv, ops.flat_gemm, torch's own linear."""
PACKED: Mapping[str, int | None] = {"sparse": None, "library": None}
"""The same of a packed layer: the format's own kernel; unpacking and torch's own linear."""

BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
"""Numbers of tokens that are looked at."""

ITEMSIZE = 2  # bytes of float16 and bfloat16

# What a kernel for dense layers must be faster by than the library to be used in its place: where
# both were measured, and where this model estimates both. Whatever it expected to be faster by more
# was faster on an H200.
MARGIN, DOUBT = 0.02, 0.12


def implementations_of(format: str) -> Mapping[str, int | None]:
    """DENSE or PACKED."""
    return DENSE if format == "dense" else PACKED


@dataclass(frozen=True)
class Weight:
    """What a decision depends on.

    Attributes:
        shape: (out_features, in_features).
        format: Of a packed weight, or "dense".
        density: Share of the elements that are kept.
        nbytes: That it takes as it is held; of a dense weight it follows from the shape.

    Raises:
        ValueError: Where `nbytes` of a packed weight are missing.
    """

    shape: tuple[int, int]
    format: str = "dense"
    density: float = 1.0
    nbytes: int = 0

    def __post_init__(self) -> None:
        if self.format == "dense":
            object.__setattr__(self, "nbytes", self.dense_nbytes)
        elif self.nbytes < 1:
            raise ValueError(
                f"{self}: the bytes of a packed weight must be given; Weight.of(packed) counts them"
            )

    @classmethod
    def of(cls, packed: PackedWeight) -> Weight:
        return cls(packed.shape, packed.format.name, packed.density, packed.nbytes)

    @property
    def dense_nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * ITEMSIZE

    @property
    def implementations(self) -> Mapping[str, int | None]:
        return implementations_of(self.format)

    def __str__(self) -> str:
        text = f"{self.shape[0]}x{self.shape[1]}"
        return text if self.format == "dense" else f"{text} {self.format} {self.density:.0%} kept"


@dataclass(frozen=True)
class Gpu:
    """Constants of the model for one class of GPUs: seconds, bytes and operations of seconds.

    Attributes:
        memory: Bytes a second that a kernel reads from memory.
        l2: The same from L2.
        clock: Hertz under load.
        arithmetic: Operations a second that the library reaches on 16-bit products.
        multiprocessors: Of the GPU.
        capability: Its compute capability.
        sparse_tokens: Of a launch of the sparse kernel.
    """

    name: str
    memory: float
    l2: float
    clock: float
    arithmetic: float
    multiprocessors: int
    capability: tuple[int, int]
    sparse_tokens: int


# Of the H200 memory, L2, clock and arithmetic were measured (benchmarks/results/nvidia-h200); all
# other constants are estimates from data sheets.
GPUS = (
    Gpu("H200", 4.6e12, 9.4e12, 1.98e9, 800e12, 132, (9, 0), 128),
    Gpu("H100", 3.2e12, 8.0e12, 1.75e9, 700e12, 132, (9, 0), 128),
    Gpu("A100", 1.75e12, 4.0e12, 1.35e9, 230e12, 108, (8, 0), 32),
)

# Seconds. Measured on an H200: a launch in a CUDA graph, and all that the library takes beside its
# bytes. Estimated: from the launch to the first sum, and the joining of sums in a block and between
# blocks.
LAUNCH, LIBRARY_FIXED = 2.1e-6, 4.0e-6
BEGIN, JOIN_WARPS, JOIN_BLOCKS = 0.8e-6, 0.3e-6, 1.5e-6
ISSUE = 4 * 0.72  # instructions a clock and multiprocessor
LIBRARY_ROWS, LIBRARY_TOKENS = 128, 64  # of a tile
LIBRARY_MEMORY = 0.93  # share of the bandwidth
# Fitted to benchmarks/results/nvidia-h200/gemm.json: instructions of gemv for each 16 bytes of
# weight a lane, and waiting; of flat_gemm what a byte of x costs, which comes from L2, and how much
# longer more than 16 tokens take.
GEMV_CHUNK, GEMV_TOKEN = 52, 14
FLAT_ROWS, FLAT_X, FLAT_MANY = 32, 0.15, 1.2  # rows of a block: kernels/cuda/dense_plan.h
CHUNK = 32 * 8  # elements of a warp's 16-byte load

# Clocks of a multiprocessor for a tile of 128x64 of a "load as sparse" kernel, up to 8 tokens, and
# the share that each further token of a launch adds; seconds for the joining of sums between
# blocks, and for each token of them. Fitted to Tiled-CSL on an H200.
TILE, TILE_CLOCKS, TILE_CLOCKS_A_BYTE, TILE_TOKEN = 128 * 64, 320, 0.028, 0.0135
SPARSE_JOIN, SPARSE_JOIN_TOKEN = 3.5e-6, 0.06e-6
UNPACK_MEMORY = 0.61  # share of the bandwidth that unpacking reaches, over what it reads and writes


def find_gpu(name: str, capability: tuple[int, int]) -> Gpu:
    """The constants for a GPU, by its name or else by its generation."""
    for gpu in GPUS:
        if gpu.name.lower() in name.lower():
            return gpu
    wanted = "H100" if capability >= (9, 0) else "A100"
    return next(gpu for gpu in GPUS if gpu.name == wanted)


def seconds(implementation: str, weight: Weight, tokens: int, gpu: Gpu) -> float:
    """Estimated time of one call; infinite where the implementation takes fewer tokens.

    Args:
        implementation: A key of `weight.implementations`.
        weight: What is multiplied.
        tokens: At least 1.
        gpu: One of GPUS.
    """
    most = weight.implementations[implementation]
    if most is not None and tokens > most:
        return math.inf
    activations = ITEMSIZE * tokens * sum(weight.shape) / gpu.memory
    if implementation == "sparse":
        return activations + _sparse(weight, tokens, gpu)
    if implementation == "library":
        unpack = 0.0
        if weight.format != "dense":
            moved = weight.nbytes + weight.dense_nbytes
            unpack = moved / (UNPACK_MEMORY * gpu.memory) + LAUNCH
        return activations + unpack + _library(weight, tokens, gpu)
    own = _gemv if implementation == "gemv" else _flat
    return activations + own(weight, tokens, gpu)


def _gemv(weight: Weight, tokens: int, gpu: Gpu) -> float:
    out_features, in_features = weight.shape
    # Warps of 4 rows share x in L1, on average two at a time.
    x_bytes = ITEMSIZE * tokens * in_features * out_features / 4 / 2
    issued = out_features * in_features / CHUNK * (GEMV_CHUNK + GEMV_TOKEN * tokens)
    busy = max(
        weight.nbytes / gpu.memory,
        (weight.nbytes + x_bytes) / gpu.l2,
        issued / (gpu.multiprocessors * ISSUE * gpu.clock),
    )
    return LAUNCH + BEGIN + JOIN_WARPS + busy


def _flat(weight: Weight, tokens: int, gpu: Gpu) -> float:
    out_features, in_features = weight.shape
    x_bytes = ITEMSIZE * tokens * in_features * out_features / FLAT_ROWS
    busy = max((weight.nbytes + FLAT_X * x_bytes) / gpu.memory, (weight.nbytes + x_bytes) / gpu.l2)
    if tokens > 16:
        busy *= FLAT_MANY
    join = JOIN_BLOCKS if out_features < FLAT_ROWS * gpu.multiprocessors / 2 else 0.0
    return LAUNCH + BEGIN + join + busy


def _library(weight: Weight, tokens: int, gpu: Gpu) -> float:
    out_features, in_features = weight.shape
    padded = LIBRARY_TOKENS * -(-tokens // LIBRARY_TOKENS)
    x_bytes = ITEMSIZE * padded * in_features * out_features / LIBRARY_ROWS / 4
    memory = max(
        weight.dense_nbytes / (LIBRARY_MEMORY * gpu.memory),
        (weight.dense_nbytes + x_bytes) / gpu.l2,
    )
    arithmetic = 2.0 * padded * in_features * out_features / gpu.arithmetic
    return LIBRARY_FIXED + max(memory, arithmetic)


def _sparse(weight: Weight, tokens: int, gpu: Gpu) -> float:
    tiles = weight.shape[0] * weight.shape[1] / TILE
    clocks = TILE_CLOCKS + TILE_CLOCKS_A_BYTE * weight.nbytes / tiles
    spread = tiles / (gpu.multiprocessors * gpu.clock)
    total = 0.0
    for begin in range(0, tokens, gpu.sparse_tokens):
        taken = min(gpu.sparse_tokens, tokens - begin)
        busy = clocks * spread * (1 + TILE_TOKEN * max(0, taken - 8))
        join = SPARSE_JOIN + SPARSE_JOIN_TOKEN * taken
        total += LAUNCH + BEGIN + join + max(weight.nbytes / gpu.memory, busy)
    return total


def times(
    weight: Weight, gpu: Gpu, buckets: Sequence[int] = BUCKETS
) -> dict[int, dict[str, float]]:
    """Estimated seconds of every implementation, by tokens."""
    return {
        tokens: {name: seconds(name, weight, tokens, gpu) for name in weight.implementations}
        for tokens in buckets
    }


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
