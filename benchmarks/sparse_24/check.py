# SPDX-License-Identifier: Apache-2.0
"""Where the kernels of sparse_24 take each value of a weight to be, on a GPU.

    python benchmarks/sparse_24/check.py

x is the identity, so y is the transposed weight as the kernel reads it: a value in a wrong place
says which lane, register or half of the metadata was read in place of another. Then products of
random weights by every compiled shape, cluster and way to share tiles, against float64, twice. All
of it for each type of values, and for codes on both sides; of int8 those are exact, and held to the
last bit. Prints a line for each launch; ends with status 1 if any is wrong.

    python benchmarks/sparse_24/check.py int8 --rounded

is codes of int8 on both sides alone, and

    python benchmarks/sparse_24/check.py --few --times codes.csv

checks the kernel for few tokens alone, and then, if all is right, writes what products by codes of
8 bits take, scales of rows beside those of groups, and x of 16 bits beside x of codes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.append(str(Path(__file__).parents[1]))
from sparse_24 import codes_times
from sparse_24 import launches as few
from sparse_24 import wgmma_launches as many
from sparse_24.launches import Launch
from sparse_24.wgmma_launches import GROUP_ROWS, WgmmaLaunch

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.pattern.sparse_24.layout import layout_of
from flashsparse_plugin.formats.values.activations import quantise_tokens, rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES

GROUPS = (32, 64, 128)
WARPS = ((1, 1), (2, 1), (1, 2), (2, 3))  # of a block, along rows and along columns
CLUSTERS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (1, 8))  # down, depth


class Kind(NamedTuple):
    """Values of a weight, and whether x is rounded to such codes."""

    values: str = "native"
    group: int | None = None
    rounded: bool = False

    @property
    def options(self) -> PatternOptions:
        return PatternOptions(n=2, m=4, values=self.values, group=self.group)

    def pack(self, weight: torch.Tensor) -> PackedWeight:
        """The weight in sparse_24; off its pattern are the smallest."""
        weight = PatternOptions(n=2, m=4).keep_largest(weight)
        scheme = Sparse24().scheme(weight.dtype, self.options.model_dump())
        return Sparse24().pack(weight, scheme)

    @property
    def x_bytes(self) -> int:
        return 1 if self.rounded else 2

    def linear(self, launch: Launch | WgmmaLaunch, *arguments) -> torch.Tensor:
        return (launch.linear_rounded if self.rounded else launch.linear)(*arguments)


KINDS = (
    Kind(),
    Kind("fp8_e4m3"),
    Kind("int8"),
    Kind("int4"),
    *(Kind(values, group) for values in ("fp8_e4m3", "int8", "int4") for group in GROUPS),
    Kind("fp8_e4m3", None, True),
    Kind("int8", None, True),
)


def misplaced(
    kind: Kind, launch: Launch | WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype
) -> str:
    """What is wrong of a weight that the identity is multiplied by, or nothing."""
    torch.manual_seed(rows)
    packed = kind.pack(torch.randint(1, 250, (rows, cols), device="cuda").to(dtype))
    weight, x = packed.unpack(), torch.eye(cols, dtype=dtype, device="cuda")
    y = torch.cat([kind.linear(launch, packed, part) for part in x.split(tokens)]).T
    # Scales of tokens are rounded, so that a product may be, too.
    allowed = torch.finfo(dtype).eps * weight.abs() if kind.rounded else torch.zeros_like(weight)
    wrong = ~((y - weight).abs() <= allowed)
    places = wrong.nonzero()
    if not len(places):
        return ""
    told = [f"{len(places)} of {weight.numel()} elements; (row, column): weight, read"]
    for row, column in places[:12].tolist():
        told.append(f"({row}, {column}): {weight[row, column]:g}, {y[row, column]:g}")
    rows_off = places[:, 0].remainder(GROUP_ROWS).unique().tolist()
    columns_off = places[:, 1].remainder(64).unique().tolist()
    return "; ".join([*told, f"rows modulo 64: {rows_off}", f"columns modulo 64: {columns_off}"])


def inexact(
    kind: Kind, launch: Launch | WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype
) -> str:
    """What is wrong of a random product, or nothing."""
    torch.manual_seed(tokens)
    packed = kind.pack(torch.randn(rows, cols, device="cuda").to(dtype))
    x, bias = (torch.randn(*size, device="cuda").to(dtype) for size in ((tokens, cols), (rows,)))
    y, again = (kind.linear(launch, packed, x, bias) for _ in range(2))
    taken = rounded_tokens(x, VALUE_TYPES[kind.values]) if kind.rounded else x.double()
    weight = packed.unpack().double()
    exact = taken @ weight.T + bias.double()
    magnitude = taken.abs() @ weight.abs().T + bias.double().abs()
    # Unpacking rounds code x scale, which kernels do not; fp8 products are summed in 14 bits.
    rounding = 0.0 if kind.values == "native" else torch.finfo(dtype).eps
    of_fp8 = kind.rounded and kind.values == "fp8_e4m3"
    each = cols * 2**-23 + rounding + (cols / 64 * 2**-13 if of_fp8 else 0)
    bound = each * magnitude + exact.abs() * torch.finfo(dtype).eps
    bad = int(((y.double() - exact).abs() > bound).sum() + y.isnan().sum())
    told = [f"{bad} of {y.numel()} elements off"] if bad else []
    told += [] if torch.equal(y, again) else ["not the same again"]
    if kind.rounded and not of_fp8:
        off = int((kind.linear(launch, packed, x) != integer_linear(packed, x)).sum())
        told += [f"{off} of {y.numel()} elements differ from the sum of integers"] if off else []
    return "; ".join(told)


def integer_linear(packed: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    """The product of codes by codes as it must be to the last bit."""
    codes, scales = Sparse24().codes(packed)
    x_codes, x_scales = quantise_tokens(x, VALUE_TYPES["int8"])
    sums = (x_codes.double() @ codes.double().T).float()  # exact in float64, and rounded once
    return (sums * x_scales * scales.T).to(x.dtype)


def by_wgmma(kind: Kind, dtype: torch.dtype, most: int) -> Iterator[tuple[str, str]]:
    """Launches for many tokens in tiles of `most` at most, and what is wrong of each."""
    for own, (down, depth) in product(many.compiled_shapes(), CLUSTERS):
        rows = GROUP_ROWS * own.groups * down
        if own.tokens > most or not own.is_for(layout_of(kind.options)):
            continue
        counts, cols = many.stage_counts(own, depth, layout_of(kind.options)), 256 * depth
        if max(counts, default=0) < 2:
            continue
        stages = max(counts)
        if not own.has_cluster(down, depth):
            continue
        tiles = (2, 4) if depth > 1 else (3, 3)  # shared, or as many as there are
        one = WgmmaLaunch(own.index, down, depth, 2, 1)
        yield f"{one}, identity", misplaced(kind, one, rows, cols, own.tokens, dtype)
        for count, tokens in zip(tiles, (own.tokens - 3, own.tokens + 7), strict=True):
            launch = WgmmaLaunch(own.index, down, depth, stages, count)
            found = inexact(kind, launch, 2 * rows - 35, 2047, tokens, dtype)
            yield f"{launch}, {tokens} tokens", found


def by_mma(kind: Kind, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """Launches for few tokens, and what is wrong of each."""
    most = torch.cuda.get_device_properties("cuda").shared_memory_per_block_optin
    layout = layout_of(kind.options)
    for own, (down, across) in product(few.compiled_shapes(), WARPS):
        if not few.is_compiled(own, layout, kind.x_bytes):
            continue
        rows = 16 * own.row_units * down
        one, shared = (Launch(own.index, down, across, 2, 2, blocks) for blocks in (1, 3))
        if few.shared_bytes(own, one, layout, kind.x_bytes) > most or down * across > own.warps:
            continue
        yield f"{one}, identity", misplaced(kind, one, rows, 256 * across, own.tokens, dtype)
        for launch, tokens in ((one, own.tokens - 3), (shared, own.tokens)):
            found = inexact(kind, launch, 2 * rows - 5, 2047, tokens, dtype)
            yield f"{launch}, {tokens} tokens", found


def has_mma(kind: Kind) -> bool:
    """Whether this GPU multiplies such values by mma."""
    capability = torch.cuda.get_device_capability()
    is_fp8 = kind.rounded and kind.values == "fp8_e4m3"
    return not is_fp8 or capability == (8, 9) or capability[0] == 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("values", nargs="?", help="one type of values; all of them if left out")
    parser.add_argument("--rounded", action="store_true", help="codes on both sides alone")
    parser.add_argument("--few", action="store_true", help="the kernel for few tokens alone")
    parser.add_argument("--most", type=int, default=256, help="tokens of a wgmma tile at most")
    parser.add_argument("--times", type=Path, help="a file for what codes take, if all is right")
    arguments = parser.parse_args()
    kinds = [
        kind
        for kind in KINDS
        if arguments.values in (None, kind.values) and kind.rounded >= arguments.rounded
    ]
    checked, failures = 0, 0
    for kind, dtype in product(kinds, (torch.float16, torch.bfloat16)):
        found = by_mma(kind, dtype) if has_mma(kind) else iter(())
        if not arguments.few and torch.cuda.get_device_capability() == (9, 0):
            found = chain(found, by_wgmma(kind, dtype, arguments.most))
        for launch, told in found:
            state = "WRONG" if told else "right"
            print(f"{state}  {tuple(kind)}  {dtype}  {launch}  {told}", flush=True)
            checked, failures = checked + 1, failures + bool(told)
    print(f"{failures} of {checked} launches are wrong")
    if arguments.times and not failures:
        codes_times.write(arguments.times)
    return int(failures > 0 or checked == 0)


if __name__ == "__main__":
    sys.exit(main())
