# SPDX-License-Identifier: Apache-2.0
"""Are float32 N:M weights multiplied right on this GPU, and how fast beside cuBLAS?

    python benchmarks/gpu/nm_fp32.py             everything, in 4 minutes at most
    python benchmarks/gpu/nm_fp32.py --check     every way to call it, against float64
    python benchmarks/gpu/nm_fp32.py --steps     NM-SpMM's Figure 7 (V1, V2, V3 at 4096^3) and
                                                 Figure 8 (Table I's tiles on Table II's shapes)
    python benchmarks/gpu/nm_fp32.py --speed     its Figure 9: 100 points, and few tokens
    python benchmarks/gpu/nm_fp32.py --device cpu --check     shows that this program works

Beside it: torch's float32 product without TF32, the faster of F.linear and mm with the weight
stored transposed. Patterns are the paper's, N:32 in vectors of 32 rows. Results are saved after
each layer; when the --minutes are over, the rest is left out with a message. The card's clocks are
never set.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from _check import Checker, errors_of
from _device import Budget, Stopwatch, _formats, _measure, cold_bytes
from _launches import Launch, launches
from _layers import Layer, layer
from _program import (
    check_layers,
    conditions,
    device_of,
    numbers,
    parser,
    run_parts,
    save_each,
    signature,
)
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm
from flashsparse_plugin.formats.pattern.nm_spmm.layout import Layout
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops.plan import compiled_shapes

Row = dict[str, Any]
# Hidden and intermediate sizes of five Llama models: the (n, k) of Figure 9, as in its data.
SIZES = ((2048, 5632), (4096, 11008), (5120, 13824), (6656, 17920), (8192, 22016))
LAYERS = [
    Layer(f"Llama, {hidden} wide", name, *shape)
    for hidden, inner in SIZES
    for name, shape in (
        ("o", (hidden, hidden)),
        ("qkv", (3 * hidden, hidden)),
        ("down", (hidden, inner)),
        ("up", (inner, hidden)),
    )
]
TOKENS = (256, 512, 1024, 2048, 4096)
FEW = (1, 8, 16, 32, 64, 128)  # for the layers of FEW_LAYERS, after the 100 points
FEW_LAYERS = [each for each in LAYERS if each.model == "Llama, 4096 wide"]
ZEROS = {0.0: 32, 0.5: 16, 0.625: 12, 0.75: 8, 0.875: 4}  # N of 32
TABLE_II = {"A": (512, 512, 512), "B": (512, 1024, 1024), "C": (512, 2048, 2048),
            "D": (1024, 2048, 2048), "E": (2048, 4096, 4096), "F": (4096, 4096, 4096)}  # fmt: skip
"""m, n, k: tokens, out_features, in_features."""
KERNEL, SPLITS = "nm_spmm.sparse", (1, 2, 4, 8, 16)
MOST_BLOCKS = 2048  # above which splits do not pay


class Kernel(NamedTuple):
    """One of the compiled kernels; its index is what a launch has."""

    index: int
    tokens: int
    rows: int
    thread_tokens: int
    thread_rows: int
    stages: int
    packing: bool

    @property
    def is_v3(self) -> bool:
        return self.stages > 1

    @property
    def version(self) -> str:
        """Which of the paper's optimisations it has: V1, V2 or V3."""
        return "V3" if self.is_v3 else "V2" if self.packing else "V1"

    def __str__(self) -> str:
        packing = ", packing" if self.packing else ""
        tile = f"{self.tokens}x{self.rows} by {self.thread_tokens}x{self.thread_rows}"
        return f"{tile}, {self.version}{packing}"


def compiled_kernels() -> list[Kernel]:
    return [
        Kernel(index, *(own[name] for name in Kernel._fields[1:]))
        for index, own in enumerate(compiled_shapes(KERNEL))
    ]


def vectors(n: int) -> PatternOptions:
    """The paper's patterns."""
    return PatternOptions(n=n, m=32, vector_length=32)


# ---- right? -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int]
    options: PatternOptions
    tokens: tuple[int, ...]
    planned: bool = False  # also by launches of every compiled shape

    def __str__(self) -> str:
        return f"{self.shape[0]}x{self.shape[1]}, {self.options.title}"


PATTERNS = (
    *(vectors(n) for n in ZEROS.values()),
    PatternOptions(n=2, m=4, vector_length=8),
    PatternOptions(n=3, m=5, vector_length=4),
    PatternOptions(n=1, m=32, vector_length=128),
    PatternOptions(n=64, m=128, vector_length=16),
)


def cases() -> Iterator[Case]:
    """All cases, the most informative first."""
    for options in PATTERNS:
        yield Case((4096, 4096), options, (1, 8, 17, 300, 1024))
        yield Case((640, 1100), options, (1, 13, 61, 200), planned=True)
        for shape in ((1, 1), (33, 130), (129, 63), (300, 300), (1000, 4100), (4100, 1001)):
            yield Case(shape, options, (1, 3, 16, 33, 70, 129))
    yield Case((256, 128), PATTERNS[3], (600_000,))  # several launches


def small_cases() -> Iterator[Case]:
    for options in PATTERNS[1:8:2]:
        yield Case((160, 320), options, (1, 9, 33), planned=True)


class SpmmChecker(Checker):
    """Checks weights in the form that their device reads."""

    def _check(self, case: Case, number: int) -> None:
        weight = case.options.keep_largest(
            random_weight(case.shape, 1.0, torch.float32, self._device, seed=number)
        ).contiguous()
        packed = fs.pack(weight, "nm_vector", case.options.model_dump()).prepare(self._device)
        form = packed.scheme.format.name
        if self._device.type == "cuda":
            self.tally.add("is nm_spmm", form == "nm_spmm", case)
        self.tally.add("unpacked", torch.equal(packed.unpack(), weight), case)
        exact = weight.to(self._reference).double().T
        for index, tokens in enumerate(case.tokens):
            x = self._random((tokens * case.shape[1] + 1,))
            x = x[number % 2 : number % 2 + tokens * case.shape[1]].view(tokens, -1)
            bias = self._random(case.shape[:1]) if (number + index) % 2 else None
            where = f"{case}, {tokens} tokens"
            op = partial(_formats.multiply, packed, bias=bias)
            y = op(x)
            norm, element = errors_of(y, x, exact, bias, self._reference)
            self._judge(float(norm), float(element), where)
            self.tally.add("the same again", all(torch.equal(y, op(x)) for _ in range(2)), where)
            if self._device.type == "cuda" and index == number % len(case.tokens):
                self._check_stream(op, x, y, where)
                if self._graphs:
                    self._check_graph(op, x, y, where)
            for launch in launches(packed, tokens, self._device) if case.planned else ():
                twice = [launch.linear(packed, x, bias) for _ in range(2)]
                norm, element = errors_of(twice[0], x, exact, bias, self._reference)
                self._judge(float(norm), float(element), f"{where}, {launch}")
                self.tally.add("the same again", torch.equal(*twice), f"{where}, {launch}")


# ---- fast? --------------------------------------------------------------------------------------


def random_packed(
    shape: tuple[int, int], options: PatternOptions, device: torch.device
) -> fs.PackedWeight:
    """A weight of random values and choices, made where it is."""
    generator = torch.Generator(device).manual_seed(0)
    layout = Layout(options, shape)
    panels = (layout.blocks, layout.panels)
    windows = layout.entries // options.n
    choice = torch.rand(
        *panels, layout.groups, windows, options.m, generator=generator, device=device
    )
    kept = choice.topk(options.n, dim=-1).indices.sort(-1).values
    first = torch.arange(windows, device=device)[:, None] * options.m
    index = (kept + first).flatten(3).to(torch.uint8)
    values = torch.randn(*panels, 4, layout.entries, 32, generator=generator, device=device)
    tensors = (values.view(torch.int32), index, *layout.lists_of(index))
    scheme = NMSpmm().scheme(torch.float32, options.model_dump())
    names = NMSpmm.tensor_names
    return fs.PackedWeight(scheme, shape, dict(zip(names, tensors, strict=True)))


class Speed:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch

    def points(self, budget: Budget) -> Iterator[Layer]:
        """Figure 9, and few tokens; yields after each layer, ends when the time is over."""
        arguments = self._arguments
        todo = [(each, arguments.tokens) for each in arguments.layers or LAYERS]
        if not arguments.layers:
            todo += [(each, FEW) for each in FEW_LAYERS]
        for each, tokens in todo:
            if budget.left < 0:
                return
            dense = {count: self._dense(each.shape, count) for count in tokens}
            for zeros, n in self._zeros():
                packed = random_packed(each.shape, vectors(n), self._device)
                for count in tokens:
                    self._measure(packed, zeros, count, dense[count], "points", None)
            yield each

    def steps(self, budget: Budget) -> Iterator[str]:
        """Figures 7 and 8."""
        tiles = {(32, 32), (32, 64), (64, 64), (64, 128), (128, 128)}
        for name, (tokens, rows, cols) in reversed(TABLE_II.items()):
            dense = self._dense((rows, cols), tokens)
            for zeros, n in ZEROS.items():
                if budget.left < 0:
                    return
                packed = random_packed((rows, cols), vectors(n), self._device)
                for kernel in compiled_kernels():
                    # Figure 7 compares versions; the others are pipelined.
                    if (kernel.tokens, kernel.rows) in tiles and (name == "F" or kernel.is_v3):
                        self._best(packed, zeros, tokens, dense, name, kernel)
            yield f"Table II, {name}"

    def _zeros(self) -> Iterator[tuple[float, int]]:
        return ((zeros, n) for zeros, n in ZEROS.items() if zeros in self._arguments.zeros)

    def _best(
        self, packed: fs.PackedWeight, zeros: float, tokens: int, dense: float, part: str,
        kernel: Kernel,
    ) -> None:  # fmt: skip
        """The fastest launch of one kernel, if it can have such a product."""
        before = len(self.rows)
        tiles = -(-tokens // kernel.tokens) * -(-packed.shape[0] // kernel.rows)
        for splits in SPLITS:
            if splits > 1 and tiles * splits > MOST_BLOCKS:
                break
            with contextlib.suppress(RuntimeError):  # a rule is broken: too many splits
                self._measure(packed, zeros, tokens, dense, part, (kernel, splits))
        self.rows[before:] = sorted(self.rows[before:], key=lambda row: row["us"])[:1]

    def _measure(
        self, packed: fs.PackedWeight, zeros: float, tokens: int, dense: float, part: str,
        launch: tuple[Kernel, int] | None,
    ) -> None:  # fmt: skip
        x = self._x(tokens, packed.shape[1])
        multiply: Any = _formats.multiply
        if launch is not None:
            multiply = Launch(KERNEL, (launch[0].index, launch[1])).linear
        copies = self._copies(partial(_formats.copy_of, packed), packed.nbytes, tokens)
        us = self._stopwatch(lambda: multiply(copies(), x), len(copies)).microseconds
        operations = 2e-6 * tokens * packed.shape[0] * packed.shape[1]
        self.rows.append({
            "part": part,
            "shape": f"{packed.shape[0]}x{packed.shape[1]}",
            "zeros": zeros,
            "tokens": tokens,
            "launch": "its own choice" if launch is None else f"{launch[0]}, {launch[1]} splits",
            "version": "" if launch is None else launch[0].version,
            "us": round(us, 2),
            "dense_us": round(dense, 2),
            "ratio": round(dense / us, 3),
            "tflops": round(operations * (1 - zeros) / us, 2),
            "dense_tflops": round(operations / dense, 2),
        })  # fmt: skip

    def _dense(self, shape: tuple[int, int], tokens: int) -> float:
        """Microseconds of the library."""
        weight = torch.randn(shape, device=self._device)
        x = self._x(tokens, shape[1])
        found = []
        for make, call in (
            (weight.clone, lambda w: F.linear(x, w)),
            (lambda: weight.T.contiguous(), lambda w: torch.mm(x, w)),
        ):
            copies = self._copies(make, weight.nbytes, tokens)
            time = self._stopwatch(lambda call=call, copies=copies: call(copies()), len(copies))
            found.append(time.microseconds)
        return min(found)

    def _copies(self, make: Any, nbytes: int, tokens: int) -> _measure.Rotation:
        """Cold weights where they matter: a product of many tokens takes far longer than theirs."""
        cold = cold_bytes(self._device) if tokens < TOKENS[0] else 0
        return _measure.Rotation(make, nbytes, cold)

    def _x(self, tokens: int, columns: int) -> Tensor:
        return torch.randn(tokens, columns, device=self._device)


# ---- shown --------------------------------------------------------------------------------------


def show_points(rows: Sequence[Row], about: Row) -> None:
    """Geometric means of dense time / time by tokens and zeros, and all of Figure 9."""
    console = _measure.console(width=100)
    table = Table(title="dense time / time (TFLOP/s of kept products), by tokens",
                  box=box.SIMPLE_HEAD)  # fmt: skip
    tokens = sorted({row["tokens"] for row in rows})
    for column in ("zeros", *map(str, tokens), "100 points"):
        table.add_column(column, justify="right", no_wrap=True)
    for zeros in sorted({row["zeros"] for row in rows}):
        own = [row for row in rows if row["zeros"] == zeros]
        many = [row for row in own if row["tokens"] >= TOKENS[0]]
        cells = [_cell([row for row in own if row["tokens"] == count]) for count in tokens]
        table.add_row(f"{zeros:.1%}", *cells, _cell(many))
    console.print(table)
    dense = [row["dense_tflops"] for row in rows if row["tokens"] >= TOKENS[0]]
    if dense:
        console.print(f"the library: {statistics.median(dense):.1f} TFLOP/s in the median")
    console.print(signature(about))


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    ratio = statistics.geometric_mean(row["ratio"] for row in rows)
    return f"{ratio:.2f} ({statistics.median(row['tflops'] for row in rows):.0f})"


def show_steps(rows: Sequence[Row], about: Row) -> None:
    """TFLOP/s by shape, kernel and zeros."""
    console = _measure.console(width=100)
    for part in sorted({row["part"] for row in rows}):
        own = [row for row in rows if row["part"] == part]
        dense = own[0]["dense_tflops"]
        tokens, rows_, cols = TABLE_II[part]
        table = Table(title=f"{part}, {tokens} x {rows_} x {cols}: TFLOP/s of kept products "
                            f"(library: {dense})", box=box.SIMPLE_HEAD)  # fmt: skip
        zeros = sorted({row["zeros"] for row in own})
        for column in ("kernel", *(f"{each:.1%}" for each in zeros)):
            table.add_column(column, justify="right", no_wrap=True)
        names = dict.fromkeys(row["launch"].rpartition(",")[0] for row in own)
        for name in names:
            here = {row["zeros"]: row for row in own if row["launch"].rpartition(",")[0] == name}
            table.add_row(name, *(f"{here[z]['tflops']:.1f}" if z in here else "" for z in zeros))
        console.print(table)
    console.print(signature(about))


# ---- the program --------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, minutes=4.0)
    options.set_defaults(replays=5)
    for name in ("check", "steps", "speed", "small"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--layers", type=lambda text: [layer(each) for each in text.split(",")])
    options.add_argument("--tokens", type=numbers, default=TOKENS)
    options.add_argument(
        "--zeros",
        type=lambda text: [float(each) for each in text.split(",")],
        default=[zeros for zeros in ZEROS if zeros > 0],
        help="shares, of 0,0.5,0.625,0.75,0.875",
    )
    arguments = options.parse_args(argv)
    arguments.dtype = "float32"
    device = device_of(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    budget = Budget(60 * arguments.minutes)

    def check() -> bool:
        report = arguments.out / "nm_fp32_check.txt"
        within = budget.at_most(60) if everything else budget
        return check_layers(SpmmChecker, cases, small_cases, report, arguments, device, within)

    def measure(name: str, shown: Any, file: str, within: Budget) -> bool:
        stopwatch = Stopwatch(device, arguments.replays)
        about, _ = conditions(arguments, device, stopwatch)
        measured = Speed(arguments, device, stopwatch)
        path = arguments.out / file
        save_each(getattr(measured, name)(within), measured.rows, about, path, within, shown)
        return bool(measured.rows)

    parts = {
        "check": check,
        "steps": lambda: measure("steps", show_steps, "nm_fp32_steps.csv", budget.at_most(60)),
        "speed": lambda: measure("points", show_points, "nm_fp32.csv", budget),
    }
    asked = [name for name in parts if getattr(arguments, name)]
    everything = not asked
    names = asked or list(parts)
    good = run_parts(parts[name] for name in names)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
