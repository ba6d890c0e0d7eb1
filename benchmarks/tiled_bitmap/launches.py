# SPDX-License-Identifier: Apache-2.0
"""The shapes that tiled_bitmap's kernel is compiled in, and the launches that are worth measuring.

As a program it times them on this GPU, each after a comparison with float64:

    python benchmarks/tiled_bitmap/launches.py --layers 28672x7168 4096x4096 \
      --zeros 50 80 --tokens 1 8 --out launches.csv
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

KERNEL = Path(__file__).parents[2] / "kernels" / "cuda" / "tiled_bitmap"
PLAN = KERNEL / "linear_plan.cpp"
COSTS = re.compile(r"constexpr Costs k(\w+)Costs\{([^}]*?)(,\s+true)?\};")
UNIT_ROWS, UNIT_COLS, LINE_BYTES, HEAD_LINES = 16, 256, 128, 5
SHARED_BYTES, MOST_ARRIVALS, MOST_TOKENS = 227 << 10, 4096, 64
ORDERS, ORDER_BYTES, BATCHES = 16, 8, 4
SCHEDULERS, COPIES = 4, 0.6
MOST_SPREAD = 24  # value lines of a unit on average, beyond which nobody would spread it
MEMORY_SHARE, SHARPNESS = 0.87, 8  # as in linear_plan.cpp
LEAST_HELD = 1.3  # steps of a warp that a ring holds which keeps them until they are multiplied


class Operands(IntEnum):
    """What is multiplied, as kernels/cuda/tiled_bitmap/operands.h has it."""

    NATIVE = 0
    CODES = 1
    ROUNDED = 2

    @property
    def x_bytes(self) -> int:
        """Of an element of x."""
        return 1 if self is Operands.ROUNDED else 2

    @property
    def most_lines(self) -> int:
        """Of a unit."""
        return (64 if self is Operands.NATIVE else 32) + HEAD_LINES

    def fuller_lines(self, unit_lines: float) -> int:
        """Of a unit a little fuller than the average."""
        return min(math.ceil(unit_lines + 2), self.most_lines)


class Shape(NamedTuple):
    """One X(...) of FS_TILED_BITMAP_SHAPES; its index is what a plan takes."""

    index: int
    tokens: int
    row_units: int
    warps: int
    spreads: int

    def stage_lines(self, operands: Operands, unit_lines: float) -> float:
        """Of a ring, for a step of units that are a little fuller than the average."""
        return self.row_units * (operands.fuller_lines(unit_lines) + (4 if self.spreads else 2))


class Launch(NamedTuple):
    """A launch: the numbers of LinearPlan, in the order in which the op takes them."""

    shape: int
    row_warps: int
    column_warps: int
    scratch_quarters: int
    x_stages: int
    ring_lines: int
    blocks: int
    is_early: int = 0

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch, by codes of x where the scheme says so."""
        lines, offsets, scales = map(
            packed.tensors.get, ("weight_packed", "unit_offsets", "weight_scale")
        )
        if packed.scheme.values.get("activations", "native") != "native":
            return ops.tiled_bitmap_linear_rounded_planned(
                x, lines, offsets, scales, packed.shape[0], packed.dtype, "int8", bias, list(self)
            )
        return ops.tiled_bitmap_linear_planned(
            x, lines, offsets, packed.shape[0], packed.dtype, bias, list(self), scales
        )

    def __str__(self) -> str:
        return (
            f"shape {self.shape}, "
            f"{self.row_warps}x{self.column_warps} warps, rings of {self.ring_lines} lines, "
            f"{self.x_stages} stages of x, {self.blocks} blocks, "
            f"{'early ' if self.is_early else ''}{list(self)}"
        )


def compiled_shapes(operands: Operands = Operands.NATIVE) -> list[Shape]:
    kernel = "few" if operands is Operands.NATIVE else "sparse"
    found = shapes_of(f"tiled_bitmap.{kernel}")
    return [Shape(index, **own) for index, own in enumerate(found)]


def shared_bytes(shape: Shape, plan: Launch, operands: Operands = Operands.NATIVE) -> int:
    """What kernels/cuda/tiled_bitmap/linear_shared.h lays out."""
    warps = plan.row_warps * plan.column_warps
    barriers = 8 * (2 * plan.x_stages + 1 + BATCHES + warps * ORDERS)
    orders = -(-barriers // 16) * 16 + warps * ORDERS * shape.row_units * ORDER_BYTES
    x = plan.x_stages * plan.column_warps * shape.tokens * UNIT_COLS * operands.x_bytes
    scratch = shape.row_units * (8 * plan.scratch_quarters + 3) if shape.spreads else 0
    weights = warps * (plan.ring_lines + scratch) * LINE_BYTES
    sums = warps * 2 * shape.row_units * 512 if plan.column_warps > 1 else 0
    return -(-orders // 1024) * 1024 + x + weights + sums


def costs() -> dict[str, tuple[list[float], bool]]:
    """The constants of linear_plan.cpp in the order of Costs, by what they are of, and whether what
    memory takes stands beside them."""
    found = COSTS.findall(PLAN.read_text())
    return {
        kind: ([float(each) for each in numbers.split(",")], bool(beside))
        for kind, numbers, beside in found
    }


def cost(paid: list[float], of: tuple[float, ...], memory_us: float) -> float:
    """What linear_plan.cpp says that a launch costs.

    Args:
        paid: The constants.
        of: Their `quantities`.
        memory_us: Microseconds that memory takes for the weight.
    """
    each = [a * b for a, b in zip(paid, of, strict=True)]
    loop = math.pow(sum(each[:7]) ** SHARPNESS + memory_us**SHARPNESS, 1 / SHARPNESS)
    return loop + sum(each[7:])


def kind_of(own: Shape, operands: Operands) -> str:
    """Which of the costs hold."""
    native = "Spread" if own.spreads else "Wide" if own.tokens > 32 else "Ring"
    return (native, "Codes", "Rounded")[operands]


def quantities(
    own: Shape,
    plan: Launch,
    shape: tuple[int, int],
    multiprocessors: int,
    unit_lines: float,
    operands: Operands,
) -> tuple[float, ...]:
    """What each constant of Costs is multiplied by: the same as cost() in linear_plan.cpp.

    Args:
        own: The compiled shape of the launch.
        plan: The launch.
        shape: (out_features, in_features).
        multiprocessors: Of the GPU.
        unit_lines: Lines that a unit of the weight has on average.
        operands: What is multiplied.
    """
    warps = plan.row_warps * plan.column_warps
    sets = math.ceil(math.ceil(shape[0] / UNIT_ROWS) / (plan.row_warps * own.row_units))
    steps = math.ceil(
        sets * math.ceil(math.ceil(shape[1] / UNIT_COLS) / plan.column_warps) / plan.blocks
    )
    fullest = steps * max(math.ceil(warps / SCHEDULERS), warps // SCHEDULERS + COPIES)
    tight = steps * own.stage_lines(operands, unit_lines) / plan.ring_lines
    shares = sets % plan.blocks != 0
    return (
        fullest,
        fullest * own.tokens,
        fullest * own.row_units,
        steps * own.row_units,
        tight,
        tight * own.row_units * unit_lines,
        max(0.0, steps / plan.x_stages - 1) * plan.column_warps * own.tokens,
        shares,
        shares and plan.blocks % sets != 0,
        shares * -(-plan.blocks // sets),
        shares * own.tokens * plan.row_warps * own.row_units,
        plan.blocks == multiprocessors,
    )


def _candidates(
    shape: tuple[int, int],
    tokens: int,
    multiprocessors: int,
    unit_lines: float,
    operands: Operands,
    memory: float,
) -> Iterator[tuple[float, Shape, Launch]]:
    """Every launch of the narrowest shapes that take the tokens, and what linear_plan.cpp says that
    it costs."""
    constants = costs()
    down, across = -(-shape[0] // UNIT_ROWS), -(-shape[1] // UNIT_COLS)
    taken = down * across * unit_lines * LINE_BYTES / (MEMORY_SHARE * memory) if memory else 0.0
    fitting = [each for each in compiled_shapes(operands) if each.tokens >= tokens]
    narrowest = min((each.tokens for each in fitting), default=0)
    for own in fitting:
        if own.tokens != narrowest or own.spreads and unit_lines - HEAD_LINES > MOST_SPREAD:
            continue
        least = own.stage_lines(operands, unit_lines)
        if operands is not Operands.NATIVE:  # of any unit
            least = own.row_units * (operands.most_lines + 2)
        elif not own.spreads:
            least *= LEAST_HELD
        sides = range(1, own.warps + 1)
        for row_warps, column_warps, x_stages in product(sides, sides, (3, 2)):
            warps = row_warps * column_warps
            if warps > own.warps:
                continue
            values = operands.fuller_lines(unit_lines) - HEAD_LINES
            quarters = math.ceil(values / 4) if own.spreads else 0
            room = Launch(own.index, row_warps, column_warps, quarters, x_stages, 0, 1)
            ring = (SHARED_BYTES - shared_bytes(own, room, operands)) // warps // LINE_BYTES
            if ring < least:
                continue
            sets, steps = -(-down // (row_warps * own.row_units)), -(-across // column_warps)
            parts = max(multiprocessors // sets, 1)
            whole = -(-sets // -(-sets // multiprocessors))  # a whole number of sets to each
            for blocks in {min(n, sets * steps) for n in (multiprocessors, whole, sets * parts)}:
                if blocks > multiprocessors or (sets % blocks and sets * row_warps > MOST_ARRIVALS):
                    continue
                launch = room._replace(ring_lines=ring, blocks=blocks)
                of = quantities(own, launch, shape, multiprocessors, unit_lines, operands)
                paid, beside_memory = constants[kind_of(own, operands)]
                yield cost(paid, of, taken if beside_memory else 0.0), own, launch


def plans(
    shape: tuple[int, int],
    tokens: int,
    multiprocessors: int,
    most: int = 36,
    unit_lines: float = HEAD_LINES + 33.0,
    hopper: bool = False,
    operands: Operands = Operands.NATIVE,
    memory: float = 0.0,
) -> list[Launch]:
    """The launches that should be best: as many of every shape, and of each some of every kind.

    Args:
        shape: (out_features, in_features).
        tokens: 1 to 64.
        multiprocessors: Of the GPU.
        most: How many launches.
        unit_lines: Lines that a unit of the weight has on average.
        hopper: Whether a launch may begin before the one before it has ended.
        operands: What is multiplied.
        memory: Bytes a microsecond of the GPU's memory by its clock and width, 0 if not known.

    Returns:
        The most promising of each shape first.
    """
    found = sorted(
        _candidates(shape, tokens, multiprocessors, unit_lines, operands, memory),
        key=lambda each: each[0],
    )
    of_shape: dict[int, list[Launch]] = {own.index: [] for _, own, _ in found}
    seen: Counter[tuple[int, bool, bool, int]] = Counter()
    for _, own, plan in found:
        sets = -(-shape[0] // (UNIT_ROWS * plan.row_warps * own.row_units))
        warps = plan.row_warps * plan.column_warps
        kind = own.index, plan.column_warps > 1, sets % plan.blocks != 0, warps // 4
        seen[kind] += 1
        if seen[kind] <= max(most // 6, 2):
            of_shape[own.index].append(plan._replace(is_early=int(hopper)))
    turns = chain.from_iterable(zip_longest(*of_shape.values()))
    return [plan for plan in turns if plan is not None][:most]


def memory_of(properties: Any) -> float:
    """Bytes a microsecond of a GPU's memory, as kernels/bindings/cuda.h asks for it."""
    return properties.memory_clock_rate / 1e3 * 2 * properties.memory_bus_width / 8


def launches(shape: tuple[int, int], tokens: int, device: torch.device) -> list[Launch]:
    """The launches worth trying for a weight with half of it zeros on this GPU."""
    if device.type != "cuda" or tokens > MOST_TOKENS:
        return []
    properties = torch.cuda.get_device_properties(device)
    if properties.shared_memory_per_block_optin < SHARED_BYTES:
        return []
    hopper = (properties.major, properties.minor) == (9, 0)
    return plans(
        shape,
        tokens,
        properties.multi_processor_count,
        hopper=hopper,
        memory=memory_of(properties),
    )


def error_of(y: Tensor, x: Tensor, weight: Tensor) -> float:
    """The largest error against float64, in units of what sums in float32 and rounding allow."""
    exact = x.double() @ weight.double().T
    magnitude = x.double().abs() @ weight.double().abs().T
    bound = (weight.shape[1] + 8) * 2.0**-24 * magnitude
    bound += exact.abs() * torch.finfo(y.dtype).eps / 2 + torch.finfo(y.dtype).tiny
    worst = ((y.double() - exact).abs() / bound).max()
    return float(torch.nan_to_num(worst, nan=torch.inf))


def measure(
    layer: tuple[int, int], zeros: int, tokens: list[int], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Times dense and every launch, for one weight."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
    from _device import Stopwatch, _formats, _measure, cold_bytes

    from flashsparse_plugin.dataflow.tuner import random_weight

    device, dtype = torch.device("cuda"), getattr(torch, arguments.dtype)
    stopwatch = Stopwatch(device, arguments.replays)
    properties = torch.cuda.get_device_properties(device)
    multiprocessors, hopper = properties.multi_processor_count, properties.major == 9
    memory = memory_of(properties)
    weight = random_weight(layer, 1 - zeros / 100, dtype, device)
    dense = _measure.Rotation(weight.clone, weight.nbytes, cold_bytes(device))
    turned = _measure.Rotation(weight.T.contiguous, weight.nbytes, cold_bytes(device))
    xs = {n: torch.randn(n, layer[1], device=device).to(dtype) for n in tokens}
    library = {}
    for n, x in xs.items():
        times = [
            stopwatch(partial(_linear, x, dense), len(dense)).microseconds,
            stopwatch(partial(_mm, x, turned), len(turned)).microseconds,
        ]
        library[n] = min(times)
    del dense, turned
    packed = _formats.packed_for_kernels(weight, "tiled_bitmap")
    copies = _measure.Rotation(partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(device))
    units = -(-layer[0] // UNIT_ROWS) * -(-layer[1] // UNIT_COLS)
    unit_lines = packed.tensors["weight_packed"].shape[0] / units
    for n, x in xs.items():
        found = plans(layer, n, multiprocessors, arguments.most, unit_lines, hopper, memory=memory)
        late = [each._replace(is_early=0) for each in found[:2]]
        own: list[Launch | None] = [None, *found, *late]
        for launch in own:
            call = partial(_packed, x, copies, launch)
            error = error_of(call(), x, weight)
            time = stopwatch(call, len(copies)) if error <= 1.01 else None
            yield {
                "out": layer[0], "in": layer[1], "zeros": zeros, "tokens": n, "dtype": str(dtype),
                "launch": "own choice" if launch is None else " ".join(map(str, launch)),
                "told": "" if launch is None else str(launch),
                "error": round(error, 3),
                "us": round(time.microseconds, 2) if time else "wrong",
                "dense_us": round(library[n], 2),
                "ratio": round(library[n] / time.microseconds, 3) if time else 0,
                "mb": round(packed.nbytes / 1e6, 2),
            }  # fmt: skip


def _linear(x: Tensor, weights: Any) -> Tensor:
    return F.linear(x, weights())


def _mm(x: Tensor, weights: Any) -> Tensor:
    return torch.mm(x, weights())


def _packed(x: Tensor, weights: Any, launch: Launch | None) -> Tensor:
    return weights().linear(x) if launch is None else launch.linear(weights(), x)


def layer_of(text: str) -> tuple[int, int]:
    """OUTxIN."""
    rows, cols = map(int, text.split("x"))
    return rows, cols


def main() -> None:
    """Times the launches of every point, the best first, and writes all of them."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--layers", nargs="+", type=layer_of, default=[(28672, 7168), (4096, 4096)])
    made.add_argument("--zeros", nargs="+", type=int, default=[50, 80])
    made.add_argument("--tokens", nargs="+", type=int, default=[8])
    made.add_argument("--most", type=int, default=12, help="launches of a point")
    made.add_argument("--replays", type=int, default=20)
    made.add_argument("--dtype", default="float16")
    made.add_argument("--out", type=Path)
    arguments = made.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
    from _device import _results, machine

    rows: list[dict[str, Any]] = []
    for layer, zeros in product(arguments.layers, arguments.zeros):
        found = []
        for row in measure(layer, zeros, arguments.tokens, arguments):
            found.append(row)
            rows.append(row)
            if row["us"] == "wrong":
                print("WRONG", row)
        for tokens in arguments.tokens:
            best = [row for row in found if row["tokens"] == tokens]
            best.sort(key=lambda row: -row["ratio"])
            for row in [best[0], *[r for r in found if r["launch"] == "own choice"
                                   and r["tokens"] == tokens], *best[1:4]]:  # fmt: skip
                print(f"{layer[0]}x{layer[1]} {zeros}% {tokens}: {row['us']} us, "
                      f"{row['ratio']} of {row['dense_us']}  {row['told'] or 'own choice'}",
                      flush=True)  # fmt: skip
        if arguments.out:
            _results.write(arguments.out, machine(torch.device("cuda")), rows)


if __name__ == "__main__":
    main()
