# SPDX-License-Identifier: Apache-2.0
"""Are the launches that the planner chooses for experts the fastest?

    python benchmarks/gpu/experts_launches.py --minutes 1.5

Times a whole layer over cold weights and by turns over several uniform routings, in CUDA graphs:
once as planned, then with each launch that the planner compares in the place of one of its two
products; the launches of a point in alternation. Where a launch has blocks of slots of another
size, the other product has the planned launch for that size. experts.py checks that results are
right.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _device import Budget, Stopwatch, _measure, cold_bytes
from _launches import gpu_of
from _program import DTYPES, measure, numbers, parser, signature
from experts import MODELS, ROUTINGS, Experts, routing
from rich import box
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.ops.plan import Product, candidates, override, plan

Row = dict[str, Any]
KINDS_HERE = ["2:4, int8", "2:4, int4 by 128", "2:4"]
NAMES = ("up", "down", "many_up", "many_down")  # of products, the last two by wgmma
PRODUCTS = {name: f"sparse_24_experts.{name}" for name in NAMES}


class Launches:
    """Measures layer by layer; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong = 0
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch

    def run(self, budget: Budget) -> Iterator[str]:
        for kind, name in itertools.product(self._arguments.kinds, self._arguments.models):
            experts = Experts(MODELS[name], kind, DTYPES[self._arguments.dtype], self._device)
            for tokens in self._arguments.tokens:
                if budget.left < 0:
                    return
                self._measure(name, experts, tokens)
            yield f"{name}, {kind}"

    def _measure(self, name: str, experts: Experts, tokens: int) -> None:
        model, device = experts.model, self._device
        copies = _measure.Rotation(experts.copy, experts.nbytes, cold_bytes(device))
        x = torch.randn(tokens, model.hidden, device=device).to(experts.dtype)
        weights = torch.rand(tokens, model.top_k, device=device) + 0.1
        routings = [routing(model, tokens, "uniform", seed, device) for seed in range(ROUTINGS)]
        turn = itertools.cycle(routings)

        def layer() -> Tensor:
            return experts.multiply(x, next(turn), weights, copies())

        calls: dict[tuple[str, tuple[int, ...]], Callable[[], Tensor]] = {("planned", ()): layer}
        for product in self._arguments.products if device.type == "cuda" else ():
            kernel, asked = PRODUCTS[product], self._product(experts, product, tokens)
            found = sorted(candidates(kernel, asked, gpu_of(device)), key=lambda own: own.seconds)
            if not found:  # a GPU without wgmma
                continue
            planned = plan(kernel, asked, gpu_of(device)).numbers
            best = [each.numbers for each in found[: self._arguments.most]]
            for launch in dict.fromkeys((planned, *best)):
                calls[product, launch] = partial(self._with, kernel, launch, layer)
        timed = {str(key): (call, 2 * ROUTINGS) for key, call in calls.items()}
        times = self._stopwatch.in_turns(timed)
        for product, launch in calls:
            row: Row = {"model": name, "kind": experts.kind, "tokens": tokens, "product": product}
            row["launch"] = " ".join(map(str, launch))
            row["us"] = round(times[str((product, launch))].microseconds, 2)
            self.rows.append(row)

    def _product(self, experts: Experts, product: str, tokens: int) -> Product:
        model = experts.model
        shape = model.intermediate, model.hidden
        is_up = product.endswith("up")
        units = experts.tensors[0 if is_up else 2]
        return Product(
            shape if is_up else shape[::-1], tokens, units.nbytes, experts.values,
            experts.group, (2, 4, 1), experts=(model.experts, model.top_k),
        )  # fmt: skip

    def _with(self, kernel: str, launch: tuple[int, ...], layer: Callable[[], Tensor]) -> Tensor:
        with override(kernel, launch):
            return layer()


def show(rows: list[Row], about: Row) -> None:
    """What a layer loses by each planned launch."""
    points: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "kind", "tokens"))
        points.setdefault(key, {})[f"{row['product']} {row['launch']}"] = row["us"]
    table = Table(title="Microseconds of a layer", box=box.SIMPLE_HEAD)
    for column in ("layer", "planned", "fastest", "its other launch"):
        table.add_column(column, no_wrap=True)
    lost = []
    for (model, kind, tokens), own in points.items():
        fastest = min(own, key=lambda launch: own[launch])
        lost.append(own["planned "] / own[fastest])
        times = (f"{own[each]:.1f}" for each in ("planned ", fastest))
        table.add_row(f"{model}, {kind}, {tokens} tokens", *times, fastest)
    console = _measure.console(width=100)
    console.print(table)
    if lost:
        console.print(f"planned: {statistics.geometric_mean(lost):.3f} of the fastest's time")
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=1.5, dtype="bfloat16")
    options.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS)[:2])
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=KINDS_HERE)
    options.add_argument("--products", type=lambda text: text.split(","), default=list(PRODUCTS))
    options.add_argument("--tokens", type=numbers, default=[1, 8, 16, 64, 128, 256])
    options.add_argument("--most", type=int, default=12, help="launches of a product")
    measured = measure(Launches, options.parse_args(), "experts_launches.csv", show)
    return int(not measured.rows)


if __name__ == "__main__":
    sys.exit(main())
