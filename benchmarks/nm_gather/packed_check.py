# SPDX-License-Identifier: Apache-2.0
"""Whether the packed kernel is right on this GPU, and where it reads x if it is not.

    python benchmarks/nm_gather/packed_check.py

First places: the weight has a one in each row, in the column of the row's number, and keeps all
columns. Then y is x itself, and an x that holds its own token, or its own column, tells for each
element of y where it was read. Where that is wrong, the pattern of the errors names the field of
the tensor core's descriptor that is: kernels/common/wgmma_gathered.cuh. Then products of random
weights of all shapes, compared with float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_gather import NMGather
from flashsparse_plugin.formats.pattern.options import options_of
from flashsparse_plugin.ops import ops

COLUMNS, TOKENS = 128, 512  # a 16-bit float tells them apart
SHAPES = (128, 128, 64, 64)  # rows that share an index, by the number of the shape
Linear = Callable[[PackedWeight, Tensor], Tensor]


def packed_linear(shape: int, band: int = 1) -> Linear:
    """The product by a launch of the packed kernel."""

    def linear(packed: PackedWeight, x: Tensor) -> Tensor:
        return ops.nm_gather_linear_packed_planned(
            x, *packed.tensors.values(), packed.shape[0], *options_of(packed.scheme).numbers,
            packed.dtype, None, shape, band,
        )  # fmt: skip

    return linear


def pack(weight: Tensor, n: int, m: int, length: int) -> PackedWeight:
    form = NMGather()
    return form.pack(weight, form.scheme(weight.dtype, {"n": n, "m": m, "vector_length": length}))


def read_places(linear: Linear, length: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """The token and the column of x that were read for each element of y.

    Args:
        linear: The product of a packed weight and x.
        length: Rows that share an index.
        device: Where it runs.

    Returns:
        Tokens and columns, int64 [TOKENS, COLUMNS].
    """
    packed = pack(torch.eye(COLUMNS, dtype=torch.float16, device=device), 1, 1, length)
    found = []
    for number in (torch.arange(TOKENS)[:, None], torch.arange(COLUMNS)[None]):
        x = number.expand(TOKENS, COLUMNS).to(device, packed.dtype).contiguous()
        found.append(linear(packed, x).long().cpu())
    return found[0], found[1]


def complaints(tokens: Tensor, columns: Tensor) -> Iterator[str]:
    """What of the places that were read is wrong, and what would explain it."""
    token, column = torch.arange(TOKENS)[:, None], torch.arange(COLUMNS)[None]
    wrong = (tokens != token) | (columns != column)
    if not wrong.any():
        return
    yield f"{int(wrong.sum())} of {wrong.numel()} elements were read elsewhere"
    if not wrong[:64].any():
        yield "tokens 0 to 63 are right: see the leading dimension offset, from slab to slab"
    if bool((tokens == token).all()):
        yield "only columns are wrong: see the stride dimension offset, from 8 rows to the next"
    if bool((columns == column).all() & (tokens // 64 == token // 64).all()):
        yield "only tokens of a slab are mixed up: see the swizzle, and whether B is transposed"
    for at in wrong.nonzero()[:: int(wrong.sum()) // 16 + 1].tolist():
        there = int(tokens[*at]), int(columns[*at])
        yield f"y[{at[0]}, {at[1]}] is x[{there[0]}, {there[1]}]"


def worst_error(rows: int, cols: int, tokens: int, n: int, m: int, length: int) -> float:
    """Of a planned product of random numbers, in units of what rounding explains."""
    dtype = torch.bfloat16
    form = NMGather()
    scheme = form.scheme(dtype, {"n": n, "m": m, "vector_length": length})
    weight = form.conform(torch.randn(rows, cols, device="cuda").to(dtype), scheme)
    x = torch.randn(tokens, cols, device="cuda").to(dtype)
    y = packed_linear(SHAPES.index(length))(form.pack(weight, scheme), x).double()
    exact = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T
    bound = exact.abs() * torch.finfo(dtype).eps / 2 + size * (cols + 8) * 2**-24 + 1e-30
    return float(((y - exact).abs() / bound).nan_to_num(float("inf")).max())


def main() -> None:
    for shape, length in enumerate(SHAPES):
        said = list(complaints(*read_places(packed_linear(shape, 1), length)))
        print(f"shape {shape}, vectors of {length} rows: {'wrong' if said else 'right'}")
        for each in said:
            print(f"  {each}")
    sizes = [(1, 1, 1), (130, 1100, 700), (257, 200, 65), (4096, 4096, 1000), (1000, 8192, 2049)]
    for number, size in enumerate(sizes):
        for length in (64, 128):
            n, m = ((16, 32), (8, 32), (4, 32), (3, 12), (16, 200))[number]
            error = worst_error(*size, n, m, length)
            print(f"{size}, {n}:{m}, L={length}: error {error:.2f} of what is allowed")


if __name__ == "__main__":
    main()
