# SPDX-License-Identifier: Apache-2.0
"""Where the wgmma kernel of sparse_24 takes each value of a weight to be, on a GPU.

    python benchmarks/sparse_24/check.py

x is the identity, so y is the transposed weight as the kernel reads it: a value in a wrong place
says which lane, register or half of the metadata was read in place of another. Then products of
random weights by every compiled shape, cluster and way to share tiles, against float64, twice.
Prints a line for each launch; ends with status 1 if any is wrong.
"""

from __future__ import annotations

import sys
from itertools import product

import torch
from wgmma_launches import GROUP_ROWS, WgmmaLaunch, compiled_shapes, most_stages

from flashsparse_plugin.formats.nm_pattern import PatternOptions
from flashsparse_plugin.formats.sparse_24 import Sparse24

PATTERN = PatternOptions(n=2, m=4)
CLUSTERS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2), (1, 8))  # down, depth


def pack(weight: torch.Tensor):
    """The weight in sparse_24."""
    return Sparse24().pack(weight, Sparse24().scheme(weight.dtype, PATTERN.model_dump()))


def misplaced(launch: WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype) -> str:
    """What is wrong of a weight that the identity is multiplied by, or nothing."""
    torch.manual_seed(rows)
    weight = PATTERN.keep_largest(torch.randint(1, 250, (rows, cols), device="cuda").to(dtype))
    packed, x = pack(weight), torch.eye(cols, dtype=dtype, device="cuda")
    y = torch.cat([launch.linear(packed, part) for part in x.split(tokens)]).T
    wrong = (y != weight).nonzero()
    if not len(wrong):
        return ""
    told = [f"{len(wrong)} of {weight.numel()} elements; (row, column): weight, read"]
    for row, column in wrong[:12].tolist():
        told.append(f"({row}, {column}): {weight[row, column]:g}, {y[row, column]:g}")
    rows_off = wrong[:, 0].remainder(GROUP_ROWS).unique().tolist()
    columns_off = wrong[:, 1].remainder(64).unique().tolist()
    return "; ".join([*told, f"rows modulo 64: {rows_off}", f"columns modulo 64: {columns_off}"])


def inexact(launch: WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype) -> str:
    """What is wrong of a random product, or nothing."""
    torch.manual_seed(tokens)
    weight = PATTERN.keep_largest(torch.randn(rows, cols, device="cuda").to(dtype))
    x, bias = (torch.randn(*size, device="cuda").to(dtype) for size in ((tokens, cols), (rows,)))
    packed = pack(weight)
    y, again = (launch.linear(packed, x, bias) for _ in range(2))
    exact = x.double() @ weight.double().T + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    bound = cols * 2**-23 * magnitude + exact.abs() * torch.finfo(dtype).eps
    bad = int(((y.double() - exact).abs() > bound).sum() + y.isnan().sum())
    told = [f"{bad} of {y.numel()} elements off"] if bad else []
    told += [] if torch.equal(y, again) else ["not the same again"]
    return "; ".join(told)


def main() -> int:
    failures = 0
    for own, (down, depth) in product(compiled_shapes(), CLUSTERS):
        rows = GROUP_ROWS * own.groups * down
        stages, cols = most_stages(own, depth), 256 * depth
        if stages < 2:
            continue
        tiles = (2, 4) if depth > 1 else (3, 3)  # shared, or as many as there are
        one = WgmmaLaunch(own.index, down, depth, 2, 1)
        two, four = (WgmmaLaunch(own.index, down, depth, stages, count) for count in tiles)
        for dtype in (torch.float16, torch.bfloat16):
            found = {f"{one}, identity": misplaced(one, rows, cols, own.tokens, dtype)}
            for launch, tokens in ((two, own.tokens - 3), (four, own.tokens + 7)):
                found[f"{launch}, {tokens} tokens"] = inexact(
                    launch, 2 * rows - 35, 2047, tokens, dtype
                )
            for launch, told in found.items():
                print(f"{'WRONG' if told else 'right'}  {dtype}  {launch}  {told}", flush=True)
                failures += bool(told)
    print(f"{failures} launches are wrong")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
