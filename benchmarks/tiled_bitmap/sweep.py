# SPDX-License-Identifier: Apache-2.0
"""Times many launches of tiled_bitmap's kernel for few tokens, over layers of real models.

    python benchmarks/tiled_bitmap/sweep.py --seconds 150 --out sweep.csv
    python benchmarks/tiled_bitmap/sweep.py --values int8 [--rounded] --seconds 150 --out sweep.csv

First a check of every compiled shape against float64, in a few seconds. Then, for each share of
zeros and each layer, the op's own choice and the launches that should be best, out of a cold L2, in
a CUDA graph. What is needed most comes first, and rows are written as they come: a run that is cut
off keeps what it has measured. linear_plan.cpp is fitted to them. Ends with status 1 if anything
was wrong.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from launches import (
    UNIT_COLS,
    UNIT_ROWS,
    Launch,
    Operands,
    compiled_shapes,
    error_of,
    layer_of,
    memory_of,
)
from launches import plans as plans_of
from torch import Tensor
from torch.nn import functional as F

import flashsparse_plugin as fs
from flashsparse_plugin import PackedWeight
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, elapsed, random_weight
from flashsparse_plugin.formats.values.activations import rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES, to_codes

LAYERS = (
    "28672x7168 4096x4096 4096x14336 36864x9216 12288x12288 10240x8192 28672x4096 6144x4096 "
    "9216x9216 8192x8192 7168x7168 57344x8192 7168x28672 21504x7168 8192x28672 27648x9216 "
    "9216x36864 36864x12288 49152x12288 12288x49152"
)
CHECKED = ((16, 256), (100, 1300), (1000, 5000))
DENSITIES = (0.5, 0.2, 0.08, 1.0, 0.0, 0.4)
REPLAYS, SECONDS = 5, 6e-4  # of a launch, and of a replay
TOLERANCE = 1e-2  # of the largest element
DENSE_BESIDE = 50  # zeros beside which the dense layer is timed, as a control


INT8 = VALUE_TYPES["int8"]
OPTIONS: dict[Operands, dict[str, str]] = {
    Operands.NATIVE: {},
    Operands.CODES: {"values": "int8"},
    Operands.ROUNDED: {"values": "int8", "activations": "int8"},
}


def packed_of(weight: Tensor, operands: Operands) -> PackedWeight:
    return fs.pack(weight, "tiled_bitmap", **OPTIONS[operands]).prepare(weight.device)


def exact_weight(weight: Tensor, operands: Operands) -> Tensor:
    """A weight like this one, which codes hold exactly where they are wanted."""
    return weight if operands is Operands.NATIVE else to_codes(weight, INT8, None)


def exact_x(x: Tensor, operands: Operands) -> Tensor:
    """What is multiplied in place of x."""
    return rounded_tokens(x, INT8) if operands is Operands.ROUNDED else x


def unit_lines(packed: PackedWeight) -> float:
    """Lines that a unit has on average."""
    rows, cols = packed.shape
    return len(packed.tensors["weight_packed"]) / (-(-rows // UNIT_ROWS) * -(-cols // UNIT_COLS))


def near(
    gpu: Any,
    shape: tuple[int, int],
    tokens: int,
    most: int,
    packed: PackedWeight,
    operands: Operands,
) -> list[Launch]:
    """The launches of a weight that should be best on a GPU."""
    lines, memory = unit_lines(packed), memory_of(gpu)
    return plans_of(shape, tokens, gpu.multi_processor_count, most, lines, True, operands, memory)


def check(gpu: Any, seconds: float, operands: Operands) -> int:
    """Holds launches of every shape against float64; the number of those that were wrong."""
    end, wrong, done = time.monotonic() + seconds, 0, 0
    tokens = sorted({own.tokens for own in compiled_shapes(operands)})
    for number, (shape, most) in enumerate(product(CHECKED, tokens)):
        for density in (DENSITIES[number % 6], DENSITIES[(number + 2) % 6]):
            dtype = torch.bfloat16 if number % 2 else torch.float16
            print(f"checking {shape}, density {density}, {most} tokens", file=sys.stderr)
            weight = random_weight(shape, density, dtype, "cuda", seed=number)
            if density == 0.4:  # full rows, empty units
                weight[3::16], weight[:16, :256] = 0.5, 0
            weight = exact_weight(weight, operands)
            packed = packed_of(weight, operands)
            x = torch.randn(most - number % 3, shape[1], device="cuda").to(dtype)
            found = near(gpu, shape, most, 8, packed, operands)
            # With a ring of one line every unit is multiplied slowly; three blocks have many steps
            # each.
            slow = [p._replace(ring_lines=1) for p in found[:1] if operands is Operands.NATIVE]
            long = [plan._replace(blocks=3) for plan in found if plan.blocks > 3]
            for plan in [None, *found, *slow, *long[:4]]:
                y = packed.linear(x) if plan is None else plan.linear(packed, x)
                again = packed.linear(x) if plan is None else plan.linear(packed, x)
                error = error_of(y, exact_x(x, operands), weight)
                done += 1
                if error > 1.01 or not torch.equal(y, again):
                    wrong += 1
                    print(f"WRONG {shape} density {density}, {len(x)} tokens: {error}, {plan}")
            if time.monotonic() > end:
                print(f"check: {wrong} of {done} launches are wrong; time is over", flush=True)
                return wrong
    print(f"check: {wrong} of {done} launches are wrong", flush=True)
    return wrong


def microseconds(call: Callable[[], object], copies: int, stream: torch.cuda.Stream) -> float:
    """Of one call, which takes turns over `copies` of its weight: a median of graphs of many."""
    with torch.cuda.stream(stream):
        call()
        once = elapsed(call, stream)
        calls = max(copies, 4, min(40, math.ceil(SECONDS / once)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                call()
        graph.replay()
        times = [elapsed(graph.replay, stream) / calls for _ in range(REPLAYS)]
    return statistics.median(times) * 1e6


def measure(
    layer: tuple[int, int],
    zeros: int,
    tokens: list[int],
    most: int,
    operands: Operands,
    write: Callable[..., None],
) -> int:
    """Writes a row for each launch; the number of those that were wrong."""
    device = torch.device("cuda")
    gpu = torch.cuda.get_device_properties(device)
    weight = exact_weight(random_weight(layer, 1 - zeros / 100, torch.float16, device), operands)
    x = torch.randn(max(tokens), layer[1], device=device).half()
    wide = exact_x(x, operands).float()
    exact = torch.cat([wide @ part.float().T for part in weight.split(8192)], dim=1)
    packed = packed_of(weight, operands)
    stream = torch.cuda.Stream()
    if zeros == DENSE_BESIDE:
        dense = [weight, *(weight.clone() for _ in range(cold_bytes_of(device) // weight.nbytes))]
        for n in tokens:
            turns = itertools.cycle(dense)
            us = microseconds(lambda n=n, t=turns: F.linear(x[:n], next(t)), len(dense), stream)
            write(out=layer[0], **{"in": layer[1]}, zeros=0, tokens=n, launch="F.linear", us=us)
        del dense, turns
    del weight
    copies = [packed, *(clone(packed) for _ in range(cold_bytes_of(device) // packed.nbytes + 1))]
    wrong, turn = 0, 0
    for n in tokens:
        own = x[:n]

        def call(plan: Launch | None, own: Tensor = own) -> Tensor:
            nonlocal turn
            turn = (turn + 1) % len(copies)
            return copies[turn].linear(own) if plan is None else plan.linear(copies[turn], own)

        found = near(gpu, layer, n, most, packed, operands)
        for plan in [None, *found]:
            error = float((call(plan).float() - exact[:n]).abs().max() / exact[:n].abs().max())
            us = microseconds(lambda plan=plan: call(plan), len(copies), stream)
            if not error < TOLERANCE:
                wrong += 1
                print(f"WRONG {layer} {zeros}% {n} tokens: {error}, {plan}", flush=True)
            write(
                out=layer[0], **{"in": layer[1]}, zeros=zeros, tokens=n,
                values=operands.name.lower(), lines=round(unit_lines(packed), 3),
                launch="own choice" if plan is None else " ".join(map(str, plan)),
                us=round(us, 2), mb=round(packed.nbytes / 1e6, 2),
            )  # fmt: skip
    return wrong


def clone(packed: PackedWeight) -> PackedWeight:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from _formats import copy_of

    return copy_of(packed)


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument(
        "--layers", nargs="+", type=layer_of, default=[*map(layer_of, LAYERS.split())]
    )
    made.add_argument("--zeros", nargs="+", type=int, default=[50, 80, 90, 60, 70])
    made.add_argument("--tokens", nargs="+", type=int, default=[8, 32, 16, 1])
    made.add_argument("--most", type=int, default=18, help="launches of a point")
    made.add_argument("--seconds", type=float, default=150.0)
    made.add_argument("--values", choices=["native", "int8"], default="native")
    made.add_argument("--rounded", action="store_true", help="activations to int8, too")
    made.add_argument("--out", type=Path, required=True)
    arguments = made.parse_args()
    begin = time.monotonic()
    gpu = torch.cuda.get_device_properties(0)
    if arguments.rounded and arguments.values == "native":
        made.error("--rounded multiplies codes by codes: --values int8")
    operands = Operands((arguments.values == "int8") + arguments.rounded)
    wrong = check(gpu, 12.0, operands)
    fields = ["out", "in", "zeros", "tokens", "values", "lines", "launch", "us", "mb"]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        rows = csv.DictWriter(file, fields, lineterminator="\n")
        rows.writeheader()
        best: dict[int, tuple[float, str]] = {}

        def write(**row: Any) -> None:
            rows.writerow(row)
            file.flush()
            if row["launch"] == "F.linear":
                return
            least = best.get(row["tokens"], (math.inf, ""))
            best[row["tokens"]] = min(least, (row["us"], row["launch"]))

        for zeros, layer in product(arguments.zeros, arguments.layers):
            left = arguments.seconds - (time.monotonic() - begin)
            if left < 3:
                print(f"time is over before {layer} {zeros}%")
                break
            best.clear()
            wrong += measure(layer, zeros, arguments.tokens, arguments.most, operands, write)
            told = "; ".join(f"{n}: {us} us by {launch}" for n, (us, launch) in best.items())
            print(f"{layer[0]}x{layer[1]} {zeros}%  {told}", flush=True)
    print(f"{wrong} launches are wrong, {time.monotonic() - begin:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
