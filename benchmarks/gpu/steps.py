# SPDX-License-Identifier: Apache-2.0
"""How much longer does one token more take, where a tile of tokens ends?

    python benchmarks/gpu/steps.py --minutes 4

A tile costs much the same for one token as for all of its own, so that the time of a layer rises by
steps. This times layers of real models at the numbers of tokens around them, by each format's own
choice, by its kernel for few tokens, and by the launches of its kernel for many that should be
best, beside cuBLAS. Every launch is compared with float64 before it is timed, and each compiled
shape before that, over small weights whose ends fit nothing.

Results are saved after each layer, what matters most first; when the --minutes are over, the rest
is left out with a message. Ends with status 1 if anything was wrong.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _baselines import Dense, activations
from _device import Budget, Stopwatch, _formats, _measure, _results, cold_bytes, machine
from _launches import launches
from _layers import Layer, layer
from _program import DTYPES, device_of, numbers, parser
from _steps import OWN, times
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.values.activations import rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import FEW, Plan

Row = dict[str, Any]
Linear = Callable[[fs.PackedWeight, Tensor], Tensor]

LAYERS = ("28672x7168", "4096x14336", "28672x4096", "8192x8192", "7168x28672", "4096x4096")
TOKENS = (32, 33, 64, 65, 96, 97, 128, 129, 160, 161, 192, 193, 256)
LAUNCHES = 10  # of a point
FEW_TOKENS = 64  # that the kernels for few take in one launch
CHECKED = (((1000, 1300), (65, 100, 150, 230)), ((330, 2100), (97, 129, 200, 256)))
STEP = 0.1  # from a number of tokens to the next: the most that is asked for


@dataclass(frozen=True)
class Kind:
    """A way to store a weight.

    Attributes:
        format: The one whose kernels read it.
        title: Its zeros, such as "50%" or "2:4, int8".
        zeros: Share of the weights; of a pattern that of the pattern.
        options: Of a pattern.
        rounded: Whether x is rounded to codes of the weight's type.
    """

    format: str
    title: str
    zeros: float = 0.5
    options: PatternOptions | None = None
    rounded: bool = False

    def weight(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A random one of such zeros."""
        if self.options is None:
            return random_weight(shape, 1 - self.zeros, dtype, device)
        return self.options.keep_largest(random_weight(shape, 1.0, dtype, device)).contiguous()

    def pack(self, weight: Tensor) -> fs.PackedWeight:
        """As the kernels of its device read it."""
        if self.options is None:
            return fs.pack(weight, self.format).prepare(weight.device)
        stored = fs.pack(weight, "nm_vector", self.options.model_dump())
        return stored.prepare(weight.device)

    def ways(
        self, packed: fs.PackedWeight, tokens: int, device: torch.device, most: int
    ) -> dict[str, Linear]:
        """All that is timed, by name, its own choice first; `most` launches of the wgmma kernel."""
        found: dict[str, Linear] = {OWN: _rounded if self.rounded else _formats.multiply}
        if tokens <= FEW_TOKENS and not self.rounded and _formats.kernels(self.format):
            found["few"] = partial(_formats.multiply, plan=Plan.only(FEW))
        kernels = [f"{self.format}.many"]
        for launch in launches(packed, tokens, device, kernels, most, self.rounded):
            found[f"many {list(launch.numbers)}"] = launch.of(found[OWN])
        return found

    def __str__(self) -> str:
        return f"{self.format}, {self.title}"


def two_four(values: str = "native", group: int | None = None, rounded: bool = False) -> Kind:
    options = PatternOptions(n=2, m=4, values=values, group=group)
    return Kind(
        "sparse_24", f"{options.title}{' x the same' if rounded else ''}", 0.5, options, rounded
    )


KINDS = (
    Kind("tiled_bitmap", "50%", 0.5),
    Kind("tiled_bitmap", "80%", 0.8),
    two_four(),
    two_four("fp8_e4m3"),
    two_four("int4", 128),
    two_four("fp8_e4m3", rounded=True),
    Kind("tiled_bitmap", "90%", 0.9),
    Kind("tiled_csl", "80%", 0.8),
    Kind("tiled_csl", "50%", 0.5),
    Kind("tiled_csl", "90%", 0.9),
)


def _rounded(packed: fs.PackedWeight, x: Tensor) -> Tensor:
    return ops.sparse_24_linear_rounded(
        x, *packed.tensors.values(), packed.shape[0], packed.dtype,
        packed.scheme.values["values"],
    )  # fmt: skip


class Exact:
    """The product in float64, and how far an element may be off."""

    def __init__(self, kind: Kind, weight: Tensor, x: Tensor):
        eps, codes = torch.finfo(x.dtype).eps, kind.options is not None and kind.options.value_type
        taken = x.double()
        if kind.rounded:
            taken = rounded_tokens(x, VALUE_TYPES[kind.options.values])
        parts = [
            (taken @ part.double().T, taken.abs() @ part.double().abs().T)
            for part in weight.split(4096)
        ]
        self.y = torch.cat([exact for exact, _ in parts], 1)
        # Unpacking rounds code x scale, which kernels need not; fp8 products are summed in 14 bits.
        each = weight.shape[1] * 2**-23 + (eps if codes else 0)
        if kind.rounded:
            each += weight.shape[1] / 64 * 2**-13
        self._bound = each * torch.cat([magnitude for _, magnitude in parts], 1)
        self._bound += self.y.abs() * eps

    def wrong(self, y: Tensor) -> int:
        """Elements that are too far off: y has as many tokens as x, or its first ones."""
        n = len(y)
        return int((~((y.double() - self.y[:n]).abs() <= self._bound[:n])).sum())


def check(kinds: Sequence[Kind], device: torch.device, budget: Budget) -> int:
    """Launches of every shape over small weights, twice; the number of those that were wrong."""
    bad = done = 0
    for kind, (shape, counts) in itertools.product(kinds, CHECKED):
        for tokens, dtype in itertools.product(counts, DTYPES.values()):
            if budget.left < 0:
                print(f"check: time is over before {kind}", flush=True)
                return bad
            weight = kind.weight(shape, dtype, device)
            packed = kind.pack(weight)
            x = torch.randn(tokens, shape[1], device=device).to(dtype)
            exact = Exact(kind, packed.unpack(), x)
            for name, linear in kind.ways(packed, tokens, device, 64).items():
                y, again = linear(packed, x), linear(packed, x)
                done += 1
                if exact.wrong(y) or not torch.equal(y, again):
                    bad += 1
                    print(f"WRONG {kind}, {shape}, {tokens} tokens, {dtype}: {name}", flush=True)
    print(f"check: {bad} of {done} launches are wrong, {budget.left:.0f} s left", flush=True)
    return bad


class Steps:
    """Measures layer by layer; `rows` always holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device):
        self.rows: list[Row] = []
        self.wrong = 0
        self._dense: dict[Layer, dict[int, Row]] = {}
        self._tokens, self._dtype, self._device = arguments.tokens, DTYPES[arguments.dtype], device
        self._stopwatch = Stopwatch(device, arguments.replays)
        self._launches = arguments.launches

    def dense(self, each: Layer) -> dict[int, Row]:
        """cuBLAS, by the fastest way to call it."""
        if each not in self._dense:
            found = Dense(each, self._dtype, self._device).time(self._tokens, self._stopwatch)
            self._dense[each] = found
        return self._dense[each]

    def run(self, kinds: Sequence[Kind], layers: Sequence[Layer], budget: Budget) -> Iterator[str]:
        """Yields after each layer; ends when the time is over."""
        for kind, each in itertools.product(kinds, layers):
            if budget.left < 0:
                print(f"time is over before {kind}, {each}")
                return
            dense, began = self.dense(each), len(self.rows)
            packed = kind.pack(kind.weight(each.shape, self._dtype, self._device))
            x = activations(max(self._tokens), each, self._dtype, self._device)
            exact = Exact(kind, packed.unpack(), x)
            copies = _measure.Rotation(
                partial(_formats.copy_of, packed), packed.nbytes, cold_bytes(self._device)
            )
            for tokens in self._tokens:
                self._measure(kind, each, x[:tokens], packed, copies, exact, dense[tokens])
            torch.cuda.empty_cache()
            yield f"{kind}, {each}: {len(self.rows) - began} times"

    def _measure(
        self,
        kind: Kind,
        each: Layer,
        x: Tensor,
        packed: fs.PackedWeight,
        copies: _measure.Rotation,
        exact: Exact,
        dense: Row,
    ) -> None:
        for name, linear in kind.ways(packed, len(x), self._device, self._launches).items():
            off = exact.wrong(linear(packed, x))
            if off:
                self.wrong += 1
                print(f"WRONG {kind}, {each}, {len(x)} tokens: {off} elements, {name}", flush=True)
            time = self._stopwatch(lambda linear=linear: linear(copies(), x), len(copies))
            self.rows.append(
                {"format": kind.format, "zeros": kind.title, "shape": str(each), "tokens": len(x),
                 "launch": name, "us": round(time.microseconds, 2),
                 "spread": round(time.spread, 3), "dense_us": dense["dense_us"],
                 "bytes": packed.nbytes}
            )  # fmt: skip


def report(rows: Sequence[Row]) -> Table:
    """The steps of each format: how much longer one token more takes."""
    found = times(rows)
    tokens = sorted({row["tokens"] for row in rows})
    pairs = [(n, n + 1) for n in tokens if n + 1 in tokens]
    table = Table(
        title="One token more: geometric mean over the layers (the largest), by its own choice",
        caption=f"More than {STEP:.0%} in bold. Below: by the best launch that was timed.",
    )
    table.add_column("")
    for one, more in pairs:
        table.add_column(f"{one} to {more}", justify="right")
    for kind in dict.fromkeys((row["format"], row["zeros"]) for row in rows):
        for which, name in ((0, ", ".join(kind)), (1, "  best launches")):
            cells = []
            for one, more in pairs:
                steps = [
                    of[more][which] / of[one][which]
                    for key, of in found.items()
                    if key[:2] == kind and one in of and more in of
                ]
                cells.append(_cell(steps))
            table.add_row(name, *cells)
    return table


def _cell(steps: Sequence[float]) -> str:
    if not steps:
        return ""
    mean, largest = statistics.geometric_mean(steps) - 1, max(steps) - 1
    told = f"{mean:+.0%} ({largest:+.0%})"
    return f"[bold]{told}[/]" if largest > STEP else told


def main() -> int:
    made = parser(__doc__, minutes=4.0)
    made.add_argument("--layers", type=lambda text: [layer(part) for part in text.split(",")])
    made.add_argument("--tokens", type=numbers, default=list(TOKENS))
    made.add_argument("--launches", type=int, default=LAUNCHES, help="of a point")
    made.add_argument("--formats", type=lambda text: text.split(","), help="some of them")
    made.add_argument(
        "--skip", action="append", default=[], choices=[str(each) for each in KINDS],
        metavar="KIND", help='may be given again; such as "tiled_bitmap, 50%%"'
    )  # fmt: skip
    made.add_argument("--no-check", action="store_true", help="not each compiled shape before")
    made.set_defaults(replays=3)
    arguments = made.parse_args()
    device = device_of(arguments)
    if device.type != "cuda":
        raise SystemExit("steps are those of kernels for GPUs: there is nothing to see on a CPU")
    kinds = [
        each
        for each in KINDS
        if each.format in (arguments.formats or each.format) and str(each) not in arguments.skip
    ]
    budget = Budget(arguments.minutes * 60)
    wrong = 0 if arguments.no_check else check(kinds, device, budget.at_most(40))
    steps = Steps(arguments, device)
    about = machine(device) | {"dtype": arguments.dtype, "minutes": arguments.minutes}
    for told in steps.run(kinds, arguments.layers or [layer(name) for name in LAYERS], budget):
        _results.write(arguments.out / "steps.csv", about, steps.rows)
        print(f"  {told}, {budget.left:.0f} s left", flush=True)
    _measure.console(160).print(report(steps.rows))
    wrong += steps.wrong
    print(f"{wrong} launches are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
