# SPDX-License-Identifier: Apache-2.0
"""Times many launches of sparse_24's kernels, over layers of real models.

    python benchmarks/sparse_24/sweep.py --seconds 60 --out sweep.csv
    python benchmarks/sparse_24/sweep.py --kernel many --out sweep.csv       32 and 64 tokens
    python benchmarks/sparse_24/sweep.py --kernel planned --out planned.csv  both, as the host plans

For each layer, type of values and number of tokens the launches that should be best, out of a cold
L2, in a CUDA graph; linear_plan.cpp and wgmma_plan.cpp are fitted to them. Each is held against the
product in float32, to rounding. Rows are written as they come. Ends with status 1 if anything was
wrong.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from sparse_24 import launches, wgmma_launches
from sparse_24.wgmma_launches import WgmmaLaunch

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, random_weight, replayed
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.pattern.sparse_24.layout import layout_of
from flashsparse_plugin.formats.values.activations import rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import FEW, MANY, Plan

LAYERS = (
    (28672, 7168), (8192, 28672), (57344, 8192), (28672, 4096), (7168, 28672), (4096, 14336),
    (4096, 4096), (8192, 8192), (6144, 4096), (14336, 4096),
)  # fmt: skip
MOST = {8: 24, 16: 24, 32: 12}  # launches, by tokens
REPLAYS, TOLERANCE = 5, 1e-2  # of the norm

Multiply = Callable[[PackedWeight, Tensor], Tensor]


class Kind(NamedTuple):
    """Values of a weight, and whether x is rounded to such codes."""

    values: str
    group: int | None = None
    rounded: bool = False

    @property
    def options(self) -> PatternOptions:
        return PatternOptions(n=2, m=4, values=self.values, group=self.group)


FEW_KINDS = {"int8": Kind("int8"), "int4": Kind("int4", 128), "native": Kind("native")}
MANY_KINDS = {"fp8 x fp8": Kind("fp8_e4m3", None, True), "fp8_e4m3": Kind("fp8_e4m3")}
PLANNED_KINDS = MANY_KINDS | {"int8": Kind("int8")}
# Kinds and numbers of tokens of each kernel, or of what the host plans.
SWEPT = {
    "few": (FEW_KINDS, MOST),
    "many": (MANY_KINDS, (32, 64)),
    "planned": (PLANNED_KINDS, (16, 17, 24, 32, 64)),
}


def weights(shape: tuple[int, int], options: PatternOptions) -> list[PackedWeight]:
    """Copies of a random weight, so many that none is in the L2 when its turn comes."""
    device, form = torch.device("cuda"), Sparse24()
    weight = options.keep_largest(random_weight(shape, 1.0, torch.bfloat16, device))
    copies = [form.pack(weight, form.scheme(torch.bfloat16, options.model_dump()))]
    while sum(each.nbytes for each in copies) < cold_bytes_of(device):
        tensors = {name: tensor.clone() for name, tensor in copies[0].tensors.items()}
        copies.append(PackedWeight(copies[0].scheme, copies[0].shape, tensors))
    return copies


def microseconds(multiply: Multiply, copies: list[PackedWeight], x: Tensor) -> float:
    turns = cycle(copies)
    times = replayed(lambda: multiply(next(turns), x), len(copies), REPLAYS)
    return statistics.median(times) * 1e6


def product_of(packed: PackedWeight, x: Tensor, rounded: bool) -> Tensor:
    """What every launch is held to."""
    taken = rounded_tokens(x, VALUE_TYPES[packed.scheme.values["values"]]) if rounded else x
    return taken.float() @ packed.unpack().float().T


def many_launches(shape: tuple[int, int], tokens: int, kind: Kind) -> Iterator[WgmmaLaunch]:
    """Ways to launch the kernel for many tokens in a tile of up to 64."""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    layout, columns = layout_of(kind.options), -(-shape[1] // 256)
    for own in wgmma_launches.compiled_shapes():
        if not tokens <= own.tokens <= 64 or not own.is_for(layout):
            continue
        for depth in (1, 2, 4):
            slots, tiles = processors // depth, -(-shape[0] // (64 * own.groups))
            whole, parts = -(-tiles // -(-tiles // slots)), tiles * max(slots // tiles, 1)
            for clusters in {slots, whole, parts} if depth == 1 else {tiles}:
                fits = depth == 1 or tiles <= slots
                if not fits or clusters * depth < 0.6 * processors or clusters > tiles * columns:
                    continue
                counts = wgmma_launches.stage_counts(own, depth, layout)
                yield WgmmaLaunch(own.index, 1, depth, counts[0 if kind.rounded else -1], clusters)


def ways(
    kernel: str, copy: PackedWeight, kind: Kind, tokens: int
) -> Iterator[tuple[str, Multiply]]:
    """The launches of a kernel, or those that the host plans, and how to multiply by each."""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    layout = layout_of(kind.options)
    if kernel == "few":
        for few in launches.plans(copy.shape, tokens, processors, MOST[tokens], layout):
            yield " ".join(map(str, few)), few.linear_rounded if kind.rounded else few.linear
        return
    if kind.rounded:
        yield "rounded", lambda packed, x: rounded_linear(packed, x)
    else:
        yield "many", lambda packed, x: packed.linear(x, None, Plan.only(MANY))
        if tokens <= 32:
            yield "few", lambda packed, x: packed.linear(x, None, Plan.only(FEW))
    for many in many_launches(copy.shape, tokens, kind) if kernel == "many" else ():
        yield " ".join(map(str, many)), many.linear_rounded if kind.rounded else many.linear


def rounded_linear(packed: PackedWeight, x: Tensor) -> Tensor:
    """x is rounded, and multiplied by the kernel for many tokens."""
    units, scales = packed.tensors["units"], packed.tensors["weight_scale"]
    values = packed.scheme.values["values"]
    return ops.sparse_24_linear_rounded(
        x, units, scales, packed.shape[0], packed.dtype, values, None, 0
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kernel", choices=tuple(SWEPT), default="few")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    end, wrong, done = time.monotonic() + arguments.seconds, 0, 0
    kinds, counts = SWEPT[arguments.kernel]
    torch.backends.cuda.matmul.allow_tf32 = False
    with arguments.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, ["rows", "cols", "values", "tokens", "launch", "us"])
        rows.writeheader()
        for shape, (name, kind) in product(LAYERS, kinds.items()):
            copies = weights(shape, kind.options)
            for tokens in counts:
                x = torch.randn(tokens, shape[1], device="cuda").bfloat16()
                right = product_of(copies[0], x, kind.rounded)
                for launch, multiply in ways(arguments.kernel, copies[0], kind, tokens):
                    if time.monotonic() > end:
                        print(f"time is over before {shape}; {wrong} of {done} launches are wrong")
                        return int(wrong > 0)
                    off = multiply(copies[0], x).float() - right
                    if not off.norm() <= TOLERANCE * right.norm():
                        wrong += 1
                        print(f"WRONG {shape} {name} {tokens} tokens: {launch}")
                    point: dict[str, Any] = {"rows": shape[0], "cols": shape[1], "values": name}
                    us = round(microseconds(multiply, copies, x), 2)
                    rows.writerow(point | {"tokens": tokens, "launch": launch, "us": us})
                    file.flush()
                    done += 1
            print(f"{shape} {name}", flush=True)
    print(f"{wrong} of {done} launches are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
