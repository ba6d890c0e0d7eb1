# SPDX-License-Identifier: Apache-2.0
"""Is the wgmma kernel of tiled_bitmap right on a GPU, in every shape and way to share tiles?

    python benchmarks/tiled_bitmap/check.py

x is the identity at first, so that y is the transposed weight as the kernel reads it: what is in a
wrong place says which. Then products of random weights against float64, twice: 0% to 100% zeros,
skewed rows, ends of rows, columns and tokens that fit nothing. Prints a line for each launch; ends
with status 1 if any is wrong.
"""

from __future__ import annotations

import sys

import torch
from wgmma_launches import GROUP_ROWS, WgmmaLaunch, compiled_shapes, ring_lines

import flashsparse_plugin as fs

CLUSTERS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2))  # down, depth
DENSITIES = (0.5, 0.2, 1.0, 0.0, 0.05)


def random_weight(rows: int, cols: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    """Normal values, of which some rows are full and some units empty."""
    kept = torch.rand(rows, cols, device="cuda") < density
    kept[3::64] = density > 0
    kept[:16, 256:512] = False
    return (torch.randn(rows, cols, device="cuda") * kept).to(dtype)


def misplaced(launch: WgmmaLaunch, rows: int, cols: int, tokens: int, dtype: torch.dtype) -> str:
    """What is wrong of a weight that the identity is multiplied by, or nothing."""
    torch.manual_seed(rows)
    weight = torch.randint(1, 250, (rows, cols), device="cuda").to(dtype)
    weight *= torch.rand(rows, cols, device="cuda") < 0.5
    packed, x = fs.pack(weight, "tiled_bitmap"), torch.eye(cols, dtype=dtype, device="cuda")
    y = torch.cat([launch.linear(packed, part) for part in x.split(tokens)]).T
    places = (y != weight).nonzero()
    told = [
        f"({row}, {column}): {weight[row, column]:g}, {y[row, column]:g}"
        for row, column in places[:12].tolist()
    ]
    return "; ".join([f"{len(places)} of {weight.numel()} elements", *told]) if told else ""


def inexact(
    launch: WgmmaLaunch, rows: int, cols: int, tokens: int, density: float, dtype: torch.dtype
) -> str:
    """What is wrong of a random product, or nothing."""
    torch.manual_seed(tokens)
    weight = random_weight(rows, cols, density, dtype)
    packed = fs.pack(weight, "tiled_bitmap")
    x, bias = (torch.randn(*size, device="cuda").to(dtype) for size in ((tokens, cols), (rows,)))
    y, again = (launch.linear(packed, x, bias) for _ in range(2))
    exact = x.double() @ weight.double().T + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    bound = cols * 2**-23 * magnitude + exact.abs() * torch.finfo(dtype).eps
    bad = int(((y.double() - exact).abs() > bound).sum() + y.isnan().sum())
    told = [f"{bad} of {y.numel()} elements off"] if bad else []
    told += [] if torch.equal(y, again) else ["not the same again"]
    return "; ".join(told)


def main() -> int:
    failures = number = 0
    for own in compiled_shapes():
        for down, depth in CLUSTERS:
            rows, cols = GROUP_ROWS * own.groups * down, 512 * depth
            ring = ring_lines(own, 2)
            if ring < 72 or not own.has_cluster(down, depth):
                continue
            counts = (2, 4) if depth > 1 else (3, 3)  # tiles that are shared, or one a cluster
            for dtype in (torch.float16, torch.bfloat16):
                one = WgmmaLaunch(own.index, down, depth, 2, 1, ring)
                found = {f"{one}, identity": misplaced(one, rows, cols, own.tokens, dtype)}
                for count, tokens in zip(counts, (own.tokens - 3, own.tokens + 7), strict=True):
                    density = DENSITIES[number % len(DENSITIES)]
                    lines = 72 if number % 2 else ring
                    launch = WgmmaLaunch(own.index, down, depth, 2, count, lines)
                    number += 1
                    found[f"{launch}, {tokens} tokens, density {density}"] = inexact(
                        launch, 2 * rows - 35, 2047, tokens, density, dtype
                    )
                for launch, told in found.items():
                    print(f"{'WRONG' if told else 'right'}  {dtype}  {launch}  {told}", flush=True)
                    failures += bool(told)
    print(f"{failures} launches are wrong")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
