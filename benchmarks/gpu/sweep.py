# SPDX-License-Identifier: Apache-2.0
"""Are the launches that planners choose the fastest? Every kernel, after another kernel.

    python benchmarks/gpu/sweep.py --minutes 9            all kernels, each its share of the time
    python benchmarks/gpu/sweep.py --kernels sparse_24.few --tokens 8,16 --near
    python benchmarks/gpu/sweep.py --check                every launch is right, also of odd layers

A point is a kernel, values, a layer and a number of tokens. Of each, the launches that its planner
compares are held against float64, then timed as far.py times layers: cold weights, CUDA graphs
whose launches alternate between two tensors x (us), the launches of a point in alternation; --near:
also of one x, where on Hopper each begins while the one before it ends (near_us). The planned
launch comes first, then the most promising of each compiled shape, then of all: --most of a point.

Rows are saved after each layer. Ends with status 1 if a launch is wrong, or a kernel has none.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from _baselines import activations
from _check import Exact
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _launches import KERNELS, Launch, gpu_of, launches_of
from _layers import LLAMA, Layer, layer
from _nm_check import in_float32
from _program import DTYPES, conditions, device_of, numbers, parser, save_each, signature
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.kinds import HYBRIDS, KINDS, Kind, vectors
from flashsparse_plugin.gpu import Gpu
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import Product

Row = dict[str, Any]
DENSE, FLOAT32, EXACT, EXACT_24 = "dense", "8:32 float32", "lossless", "2:4 e4m7"
MORE_KINDS = {
    "50% int8": Kind("tiled_bitmap", 0.5, {"values": "int8"}),
    "8:32 int4 by 128": vectors(n=8, m=32, vector_length=32, values="int4", group=128),
    "8:32, L=64": vectors(n=8, m=32, vector_length=64),
    "8:32, L=128": vectors(n=8, m=32, vector_length=128),
    **HYBRIDS,
    EXACT: Kind("lossless", 0.0),
    EXACT_24: Kind("exact_nm", None, {"n": 2, "m": 4}),
    FLOAT32: vectors(n=8, m=32, vector_length=32),
}
BITMAPS = tuple(f"{share} tiled_bitmap" for share in ("50%", "80%", "90%"))
CSL = tuple(f"{share} tiled_csl" for share in ("50%", "80%", "90%"))
TWO_FOUR = ("2:4", "2:4 fp8_e4m3", "2:4 int8", "2:4 int4 by 128", "2:4 int8 W8A8")
VECTORS = ("8:32", "8:32 fp8_e4m3", "8:32 int8", "8:32 int4 by 128")
# By kernel: kinds of values, and numbers of tokens that it is planned for.
SWEPT: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "dense.gemv": ((DENSE,), (1, 2, 4, 8)),
    "dense.flat_gemm": ((DENSE,), (8, 16, 32, 64)),
    "tiled_csl.sparse": (CSL, (1, 8, 16, 32, 64, 128)),
    "tiled_bitmap.few": ((*BITMAPS, "50% int8", "50% W8A8"), (1, 8, 16, 32, 64)),
    "tiled_bitmap.many": (BITMAPS, (33, 64, 128, 256)),
    "exact_units.few": ((EXACT, EXACT_24), (1, 8, 16, 32, 64)),
    "exact_units.many": ((EXACT, EXACT_24), (16, 32, 64, 128, 256, 512, 1024)),
    "hybrid_units.few": (tuple(HYBRIDS), (1, 8, 16, 32)),
    "hybrid_units.many": (tuple(HYBRIDS), (16, 32, 64, 128, 256, 512)),
    "sparse_24.few": (TWO_FOUR, (1, 8, 16, 32)),
    "sparse_24.many": ((*TWO_FOUR, "2:4 fp8 W8A8"), (8, 16, 32, 64, 128, 256)),
    "nm_gather.few": (VECTORS, (1, 8, 16)),
    "nm_gather.many": (VECTORS, (32, 64, 128, 512)),
    "nm_gather.packed": (("8:32, L=64", "8:32, L=128"), (128, 512, 2048)),
    "nm_spmm.sparse": ((FLOAT32,), (1, 16, 64, 512)),
}
LAYERS = [each for each in LLAMA if each.model == "Llama-3-8B"] + LLAMA[4:6]
ODD_LAYERS = ("300x300", "1000x1104", "129x4160")  # for --check: edges of every tile
MOST = 12
# fp8 x fp8 adds with some 14 bits: the largest error of the norm, of which rounding y has 1.7e-3.
FP8_SUMS, FP8_TOLERANCE = "2:4 fp8 W8A8", 4e-3


class Point(NamedTuple):
    kernel: str
    values: str
    layer: Layer
    tokens: int

    def __str__(self) -> str:
        return f"{self.kernel}, {self.values}, {self.layer}, {self.tokens} tokens"


class Weight:
    """A layer's weight of one kind: the copies that a product takes in turn, and how it is made."""

    def __init__(self, kind: str, each: Layer, dtype: torch.dtype, device: torch.device):
        self.dtype = torch.float32 if kind == FLOAT32 else dtype
        self._packed: fs.PackedWeight | None = None
        if kind == DENSE:
            weight = random_weight(each.shape, 1.0, self.dtype, device)
            self.values, make, nbytes = [weight], weight.clone, weight.nbytes
        else:
            own: Kind = (KINDS | MORE_KINDS)[kind]
            stored = own.pack(each.shape, self.dtype, device)
            packed = stored.transcode(own.scheme(self.dtype), device)  # as GPUs have it, anywhere
            self._packed, self.values = packed, values_of(stored)
            make, nbytes = partial(_formats.copy_of, packed), packed.nbytes
        self.copies = _measure.Rotation(make, nbytes, cold_bytes(device))

    def product(self, point: Point, gpu: Gpu) -> Product:
        """What planners are asked about.

        Raises:
            ValueError: Where kernels of another form multiply the weight.
            RuntimeError: Where rows of a dense weight do not begin on 16 bytes.
        """
        if self._packed is None:
            if point.layer.shape[1] * self.dtype.itemsize % 16:
                raise RuntimeError("its kernels read rows of 16 bytes")
            return Product(point.layer.shape, point.tokens)
        form, scheme = self._packed.format, self._packed.scheme
        if form.planner != point.kernel.split(".")[0]:
            raise ValueError(f"{point.values} is held by {form.name}, not by {point.kernel}")
        product = form.product(scheme, self._packed.shape, self._packed.nbytes, point.tokens, gpu)
        rounds = getattr(scheme.options, "activations", "native") not in (None, "native")
        return dataclasses.replace(product, quantizes_x=rounds)

    def multiply(self, kernel: str) -> Callable[[Tensor], Tensor]:
        """x -> y, by the next copy."""
        if self._packed is None:
            op = getattr(ops, kernel.split(".")[1])
            return lambda x: op(x, self.copies())
        return lambda x: self.copies().linear(x)

    def exact(self, x: Tensor) -> list[Exact]:
        """The product, by each of the values that kernels may take."""
        if self._packed is not None:
            x = self._packed.format.round_activations(x, self._packed.scheme)
        return [Exact(x, each.double().T, None, x.device) for each in self.values]


def values_of(stored: fs.PackedWeight) -> list[Tensor]:
    """A weight as unpacking gives it; of quantized values also before they are rounded."""
    rounded = stored.unpack()
    if stored.format.is_exact(stored.scheme):
        return [rounded]
    if torch.float32 in stored.format.dtypes:
        return [rounded, in_float32(stored)]
    scale = stored.tensors["weight_scale"]
    return [rounded, (rounded.float() / scale).round() * scale]


def error_of(y: Tensor, exact: Sequence[Exact], values: str) -> float:
    """The larger of the errors in the norm and of an element, as shares of their bounds."""
    if values == FP8_SUMS:
        right = exact[-1].y
        return float((y - right).norm() / (FP8_TOLERANCE * right.norm()))
    return min(max(map(float, each.errors(y))) for each in exact)


class Sweep:
    """Measures kernel by kernel; `rows` holds everything measured so far.

    Attributes:
        wrong: Launches that failed, or whose product is not right.
        checked: Launches by kernel.
    """

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong, self.checked = 0, dict.fromkeys(arguments.kernels, 0)
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._gpu, self._dtype = gpu_of(device), DTYPES[arguments.dtype]

    def run(self, budget: Budget) -> Iterator[str]:
        """Yields after each layer; each kernel has its share of the time."""
        for done, kernel in enumerate(kernels := self._arguments.kernels):
            own = budget.at_most(budget.left / (len(kernels) - done))
            kinds, usual = SWEPT[kernel]
            kinds = [each for each in kinds if each in (self._arguments.kinds or kinds)]
            tokens = [n for n in self._arguments.tokens or usual if n <= self._most(kernel)]
            for each in self._arguments.layers:
                if own.left < 0:
                    print(f"time is over before {kernel}, {each}")
                    break
                for kind in kinds:
                    if own.left < 0:
                        print(f"time is over before {kernel}, {each}, {kind}")
                        break
                    weight = Weight(kind, each, self._dtype, self._device)
                    for count in tokens:
                        self._measure(Point(kernel, kind, each, count), weight)
                    del weight
                yield f"{kernel}, {each}"

    def _most(self, kernel: str) -> int:
        """Tokens that an op takes."""
        return {"dense.gemv": 8, "dense.flat_gemm": 64}.get(kernel, 1 << 30)

    def _measure(self, point: Point, weight: Weight) -> None:
        try:
            product = weight.product(point, self._gpu)
            found = launches_of(point.kernel, product, self._gpu, self._arguments.most)
        except RuntimeError as error:
            print(f"skipped: {point}: {error}")
            return
        x = activations(point.tokens, point.layer, weight.dtype, self._device)
        multiply = weight.multiply(point.kernel)
        exact = weight.exact(x)
        good = [each for each in found if self._is_right(each, multiply, x, exact, point)]
        del exact
        self.checked[point.kernel] += len(found)
        if good and not self._arguments.check:
            self._time(point, found[0], good, multiply, x, len(weight.copies))

    def _is_right(
        self,
        launch: Launch,
        multiply: Callable[[Tensor], Tensor],
        x: Tensor,
        exact: Sequence[Exact],
        point: Point,
    ) -> bool:
        try:
            y, again = (self._launched(launch, multiply)(x) for _ in range(2))
            off = error_of(y, exact, point.values)
            if off <= 1 and torch.equal(y, again):
                return True
            told = f"off by {off:.3g} of its bound, the same again: {torch.equal(y, again)}"
        except RuntimeError as error:
            if "CUDA error" in str(error):  # the context is lost: nothing runs after it
                raise
            told = str(error)
        self.wrong += 1
        print(f"WRONG {point}, {launch.text}: {told}", flush=True)
        return False

    def _launched(
        self, launch: Launch, multiply: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """A CPU has no launches: there a toy run multiplies by the op."""
        return launch.of(multiply) if self._device.type == "cuda" else multiply

    def _time(
        self,
        point: Point,
        planned: Launch,
        launches: Sequence[Launch],
        multiply: Callable[[Tensor], Tensor],
        x: Tensor,
        copies: int,
    ) -> None:
        pair = itertools.cycle((x, x.clone()))
        calls = {each: self._launched(each, multiply) for each in launches}
        far = self._stopwatch.in_turns(
            {
                each.text: (lambda call=call: call(next(pair)), copies)
                for each, call in calls.items()
            }
        )
        near = (
            self._stopwatch.in_turns(
                {each.text: (partial(call, x), copies) for each, call in calls.items()}
            )
            if self._arguments.near
            else {}
        )
        for each in launches:
            row: Row = {"kernel": point.kernel, "values": point.values, "shape": str(point.layer)}
            row |= {"tokens": point.tokens, "launch": each.text, "planned": each == planned}
            row |= {"us": round(far[each.text].microseconds, 2)}
            row |= {"near_us": round(near[each.text].microseconds, 2)} if near else {}
            self.rows.append(row | {"expected_us": round(each.seconds * 1e6, 2)})


class Loss(NamedTuple):
    """Time of the planned launch / time of the fastest, at a point."""

    ratio: float
    at: str


def losses(rows: Sequence[Row]) -> dict[str, list[Loss]]:
    """Of each point whose planned launch was timed, by kernel."""
    points: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("kernel", "values", "shape", "tokens"))
        points.setdefault(key, []).append(row)
    found: dict[str, list[Loss]] = {}
    for (kernel, values, shape, tokens), own in points.items():
        best = min(row["us"] for row in own)
        for row in own:
            if row["planned"]:
                loss = Loss(row["us"] / best, f"{values}, {shape}, {tokens} tokens")
                found.setdefault(kernel, []).append(loss)
    return found


def show(rows: list[Row], about: Row) -> None:
    """How far the planned launches are from the fastest, by kernel."""
    table = Table(title="Planned launch: time / time of the fastest", box=box.SIMPLE_HEAD)
    for column in ("kernel", "points", "geomean", "largest", "where"):
        table.add_column(column, no_wrap=True)
    for kernel, own in losses(rows).items():
        worst = max(own)
        mean = statistics.geometric_mean(each.ratio for each in own)
        table.add_row(kernel, f"{len(own)}", f"{mean:.3f}", f"{worst.ratio:.3f}", worst.at)
    console = _measure.console(width=100)
    console.print(table)
    console.print(signature(about))


def _kernels(text: str) -> list[str]:
    """Names from "sparse_24.few,dense.gemv", or of all of a format: "sparse_24"."""
    names = text.split(",")
    found = [each for each in KERNELS if each in names or each.split(".")[0] in names]
    if unknown := [n for n in names if not any(n in (k, k.split(".")[0]) for k in found)]:
        raise SystemExit(f"there is no kernel {unknown[0]}, but {', '.join(KERNELS)}")
    return found


def main() -> int:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    options.add_argument("--kernels", type=_kernels, default=list(KERNELS))
    options.add_argument("--layers", type=lambda text: [layer(each) for each in text.split(",")])
    options.add_argument("--tokens", type=numbers, help="instead of each kernel's own")
    options.add_argument("--kinds", type=lambda text: text.split(";"), help="some of the kinds")
    options.add_argument("--near", action="store_true", help="also after a product of the same x")
    options.add_argument("--check", action="store_true", help="time nothing")
    options.add_argument("--most", type=int, default=MOST, help="launches of a point")
    options.set_defaults(replays=7)
    arguments = options.parse_args()
    if arguments.layers is None:
        odd = [layer(each) for each in ODD_LAYERS] if arguments.check else []
        arguments.layers = odd + LAYERS
    device = device_of(arguments)
    budget = Budget(60 * arguments.minutes)
    stopwatch = Stopwatch(device, arguments.replays)
    about, _ = conditions(arguments, device, stopwatch)
    sweep = Sweep(arguments, device, stopwatch)
    with torch.inference_mode():
        if arguments.check:
            for told in sweep.run(budget):
                print(f"  {told}", flush=True)
        else:
            save_each(
                sweep.run(budget), sweep.rows, about, arguments.out / "sweep.csv", budget, show
            )
    for kernel in (kernel for kernel, count in sweep.checked.items() if not count):
        print(f"{kernel} has no launches here")
    print(f"{sweep.wrong} of {sum(sweep.checked.values())} launches are wrong")
    return int(sweep.wrong > 0 or not all(sweep.checked.values()))


if __name__ == "__main__":
    sys.exit(main())
