# SPDX-License-Identifier: Apache-2.0
"""Times many launches of nm_gather's kernel for few tokens, over layers of real models.

    python benchmarks/nm_gather/sweep.py --seconds 75 --out nm_gather_sweep.csv

For each layer, pattern and number of tokens the launches that should be best, out of a cold L2, in
a CUDA graph of products of one x, each of which begins beside the end of the one before;
linear_plan.cpp is fitted to them. Each is held against float64 first, to rounding. Every point has
its share of the seconds. Ends with status 1 if anything was wrong.

    python benchmarks/nm_gather/sweep.py --after nm_gather_sweep.csv --out nm_gather_after.csv

The launches of that sweep that were near the fastest, one after the other, as behind another's
kernel.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
import _edges
import _formats
import _measure
import _results
from nm_gather.compiled import bits_of
from nm_gather.launches import Launch, Shape, compiled_shapes

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, random_weight, replayed
from flashsparse_plugin.formats.pattern.nm_gather.layout import Layout
from flashsparse_plugin.formats.pattern.options import PatternOptions, options_of

LAYERS = (
    (4096, 4096), (28672, 7168), (8192, 8192), (14336, 4096), (4096, 14336), (8192, 28672),
    (6144, 4096), (57344, 8192), (28672, 4096), (7168, 28672),
)  # fmt: skip
KEPT = (4, 8, 12, 16)  # of 32
TOKENS = (8, 16, 32)  # the last where enough columns are kept: else tiles multiply them
DENSE = 0.35  # share of columns above which 32 tokens are few: kDense of nm_gather_cuda.cpp
CHUNKS = (32 << 10, 16 << 10, 64 << 10, 1 << 30, 8 << 10)  # bytes of x, the likely ones first
REPLAYS, TOLERANCE = 3, 1e-2  # of the norm
OWN = "its own choice"
NEAR = 1.15  # of the fastest's time


def candidates(
    layout: Layout, tokens: int, multiprocessors: int, shared_bytes: int
) -> Iterator[Launch]:
    """Launches of the narrowest shape, the likely ones first.

    Each way to share out rows and columns comes with one size of chunks before any comes with
    another, so that whoever stops early has seen all of them.
    """
    shape = next(
        each
        for each in compiled_shapes()
        if (each.unit_rows, each.value_bits) == (layout.unit_rows, bits_of(layout.options))
        and each.tokens >= tokens
    )
    ways = list(_ways(layout, shape, multiprocessors))
    seen = set()
    for size in CHUNKS:
        for row_warps, depth, splits in ways:
            own = -(-layout.sections // splits)
            chunk = min(max(size // (layout.section_columns * shape.tokens * 2), 1), own)
            launch = Launch(shape, row_warps, depth, splits, chunk)
            if launch not in seen and launch.shared_bytes(layout) <= shared_bytes:
                seen.add(launch)
                yield launch


def _ways(layout: Layout, shape: Shape, multiprocessors: int) -> Iterator[tuple[int, int, int]]:
    """Warps along rows and along columns, and splits: those that leave little of the GPU idle."""
    found = []
    for splits, row_warps in product((1, 2, 3, 4), range(1, shape.warps + 1)):
        blocks = -(-layout.units // row_warps) * splits
        waves = -(-blocks // multiprocessors)
        if splits > layout.sections or (splits > 1 and waves > 1):
            continue
        idle = waves * multiprocessors / blocks + 0.05 * waves + (0.6 if splits > 1 else 0)
        most = shape.warps // row_warps
        depths = {most, max(most // 2, 1), min(max(6 // row_warps, 1), most)}
        found += [(idle, -depth, row_warps, splits) for depth in depths]
    for _, depth, row_warps, splits in sorted(found)[:14]:
        yield row_warps, -depth, splits


class Point:
    """A layer, a pattern and a number of tokens, whose launches are timed."""

    def __init__(self, copies: _measure.Rotation, x: Tensor, exact: Tensor, early: bool):
        self._copies, self._x, self._exact, self._early = copies, x, exact, early

    def is_right(self, launch: Any) -> bool:
        y = launch(self._copies(), self._x).double()
        return bool((y - self._exact).norm() <= TOLERANCE * self._exact.norm())

    def microseconds(self, launch: Any) -> float:
        def call() -> Tensor:
            return launch(self._copies(), self._x)

        if not self._early:
            return round(_edges.replayed(call, len(self._copies), False, REPLAYS)[0], 2)
        times = replayed(call, len(self._copies), REPLAYS)
        return round(statistics.median(times) * 1e6, 2)


def near_fastest(path: Path) -> dict[tuple[int, ...], list[Launch]]:
    """By rows, columns, kept ones of 32 and tokens the launches of a sweep that were near it."""
    shapes, found = compiled_shapes(), dict[tuple[int, ...], list[tuple[float, str]]]()
    for row in _results.read(path)["rows"]:
        key = tuple(row[name] for name in ("rows", "cols", "kept", "tokens"))
        if row["launch"] != OWN:
            found.setdefault(key, []).append((row["us"], row["launch"]))
    return {
        key: [
            Launch(shapes[int(text.split()[0])], *map(int, text.split()[1:]))
            for us, text in sorted(launches)
            if us <= NEAR * min(launches)[0]
        ]
        for key, launches in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--after", type=Path, help="a sweep")
    arguments = parser.parse_args()
    device, end = torch.device("cuda"), time.monotonic() + arguments.seconds
    gpu = torch.cuda.get_device_properties(device)
    about = _measure.machine() | {"gpu": gpu.name, "dtype": "bfloat16"}
    rows: list[dict[str, Any]] = []
    wrong = 0
    points = list(product(LAYERS, KEPT))
    again = near_fastest(arguments.after) if arguments.after else {}
    for number, (shape, kept) in enumerate(points):
        stop = time.monotonic() + (end - time.monotonic()) / (len(points) - number)
        options = PatternOptions(n=kept, m=32, vector_length=32)
        weight = options.keep_largest(random_weight(shape, 1.0, torch.bfloat16, device))
        packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(device)
        copies = _measure.Rotation(
            lambda packed=packed: _formats.copy_of(packed), packed.nbytes, cold_bytes_of(device)
        )
        layout = Layout(options_of(packed.scheme), packed.shape)
        many = TOKENS if kept / 32 > DENSE else TOKENS[:-1]
        for turn, tokens in enumerate(many):
            until = time.monotonic() + (stop - time.monotonic()) / (len(many) - turn)
            x = torch.randn(tokens, shape[1], device=device).bfloat16()
            point = Point(copies, x, x.double() @ weight.double().T, not again)
            # The first product after a weight is made takes up to 14% longer: so ours is last.
            launches = again.get((*shape, kept, tokens)) or candidates(
                layout, tokens, gpu.multi_processor_count, gpu.shared_memory_per_block_optin
            )
            asked = {
                " ".join(map(str, (launch.shape.index, *launch[1:]))): launch.linear
                for launch in launches
            } | {OWN: _formats.multiply}
            for name, launch in asked.items():
                if time.monotonic() > until and name != OWN:
                    continue
                if not point.is_right(launch):
                    wrong += 1
                    print(f"WRONG {shape} {kept}:32, {tokens} tokens: {name}")
                us = point.microseconds(launch)
                at = {"rows": shape[0], "cols": shape[1], "kept": kept, "tokens": tokens}
                rows.append(at | {"launch": name, "us": us})
        _results.write(arguments.out, about, rows)
        here = {"rows": shape[0], "cols": shape[1], "kept": kept, "tokens": 8}.items()
        best = min((row for row in rows if here <= row.items()), key=lambda row: row["us"])
        print(f"{shape} {kept}:32, {len(rows)} launches so far; 8 tokens: {best}", flush=True)
        del weight, copies, packed
    print(f"{wrong} of {len(rows)} launches are wrong, {gpu.name}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
