# SPDX-License-Identifier: Apache-2.0
"""Where the wgmma kernel of sparse_24 takes each value of a weight to be, on a GPU.

    python benchmarks/sparse_24/check.py

x is the identity, so y is the transposed weight as the kernel reads it: a value in a wrong place
says which lane, register or half of the metadata was read in place of another. Then products of
random weights by every compiled shape, cluster and way to share tiles, against float64, twice. All
of it for each type of values, and for codes on both sides; of int8 those are exact, and held to the
last bit. Prints a line for each launch; ends with status 1 if any is wrong.

    python benchmarks/sparse_24/check.py int8 --rounded

is codes of int8 on both sides alone.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.append(str(Path(__file__).parents[1]))
from wgmma_launches import GROUP_ROWS, WgmmaLaunch, compiled_shapes, is_compiled, most_stages

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.activations import quantise_tokens, rounded_tokens
from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.formats.sparse_24 import Sparse24
from flashsparse_plugin.formats.sparse_24.layout import layout_of
from flashsparse_plugin.formats.value_types import VALUE_TYPES

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

    def linear(self, launch: WgmmaLaunch, *arguments) -> torch.Tensor:
        return (launch.linear_rounded if self.rounded else launch.linear)(*arguments)


KINDS = (
    Kind(),
    Kind("fp8_e4m3"),
    Kind("int8"),
    *(Kind("int4", group) for group in (None, 32, 64, 128)),
    Kind("fp8_e4m3", None, True),
    Kind("int8", None, True),
)


def misplaced(
    kind: Kind, launch: WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype
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
    kind: Kind, launch: WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("values", nargs="?", help="one type of values; all of them if left out")
    parser.add_argument("--rounded", action="store_true", help="codes on both sides alone")
    arguments = parser.parse_args()
    kinds = [
        kind
        for kind in KINDS
        if arguments.values in (None, kind.values) and kind.rounded >= arguments.rounded
    ]
    failures = 0
    for kind, own, (down, depth) in product(kinds, compiled_shapes(), CLUSTERS):
        rows = GROUP_ROWS * own.groups * down
        stages, cols = most_stages(own, depth), 256 * depth
        if stages < 2 or not is_compiled(own, layout_of(kind.options)):
            continue
        tiles = (2, 4) if depth > 1 else (3, 3)  # shared, or as many as there are
        one = WgmmaLaunch(own.index, down, depth, 2, 1)
        two, four = (WgmmaLaunch(own.index, down, depth, stages, count) for count in tiles)
        for dtype in (torch.float16, torch.bfloat16):
            found = {f"{one}, identity": misplaced(kind, one, rows, cols, own.tokens, dtype)}
            for launch, tokens in ((two, own.tokens - 3), (four, own.tokens + 7)):
                found[f"{launch}, {tokens} tokens"] = inexact(
                    kind, launch, 2 * rows - 35, 2047, tokens, dtype
                )
            for launch, told in found.items():
                state = "WRONG" if told else "right"
                print(f"{state}  {tuple(kind)}  {dtype}  {launch}  {told}", flush=True)
                failures += bool(told)
    print(f"{failures} launches are wrong")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
