# SPDX-License-Identifier: Apache-2.0
"""What the programs here share: their options, how checks are reported and results are saved."""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from _check import Checker, Tally
from _device import Budget, Stopwatch, _results, bandwidth, machine, require_device

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
MOST_FAILURES = 40  # are printed; the report has them all
Row = dict[str, Any]


class Measurement(Protocol):
    """What fills rows, one thing after the other that is printed when it was measured."""

    rows: list[Row]

    def run(self, budget: Budget) -> Iterator[object]: ...


Made = TypeVar("Made", bound=Measurement)


def parser(description: str, minutes: float, dtype: str = "float16") -> argparse.ArgumentParser:
    """The options that every program has; `minutes` and `dtype` are defaults."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    made.add_argument("--dtype", default=dtype, choices=DTYPES)
    made.add_argument("--minutes", type=float, default=minutes)
    made.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>")
    made.add_argument("--replays", type=int, default=11, help="samples of each time")
    return made


def add_layer_options(made: argparse.ArgumentParser, layer: Callable[[str], Any]) -> None:
    """The options of the programs that measure linear layers."""
    made.add_argument("--small", action="store_true", help="few checks, float64 on the CPU")
    made.add_argument("--layers", type=lambda text: [layer(part) for part in text.split(",")])
    made.add_argument("--tokens", type=numbers)


def numbers(text: str) -> list[int]:
    """Numbers from "1,8,16"."""
    return [int(part) for part in text.split(",")]


def device_of(arguments: argparse.Namespace) -> torch.device:
    """The device that was asked for; makes the folder of its results the default of --out."""
    device = require_device(arguments.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "toy"
    arguments.out = arguments.out or _results.folder_of(name)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return device


def run_parts(parts: Iterable[Callable[[], bool]]) -> bool:
    """Runs one part after the other; returns whether all were good."""
    good = True
    for part in parts:
        try:
            good &= part()
        except Exception:  # an error in one part must not stop the others
            traceback.print_exc()
            good = False
    return good


def check_layers(
    checker: type[Checker],
    all_cases: Callable[[], Iterator[Any]],
    small_cases: Callable[[], Iterator[Any]],
    report: Path,
    arguments: argparse.Namespace,
    device: torch.device,
    budget: Budget,
    **options: Any,
) -> bool:
    """Checks linear layers and reports; beside a tool or on a CPU only the small cases."""
    # Beside a tool the card should run our kernels and little else.
    reference = torch.device("cpu") if arguments.small else device
    todo = small_cases if arguments.small or device.type == "cpu" else all_cases
    checks = checker(device, reference, graphs=not arguments.small, **options)
    return reported(lambda: checks.run(todo(), budget), report)


def reported(run: Callable[[], Tally], report: Path) -> bool:
    """Prints what a run of checks found and writes it to a report; returns whether all was good."""
    start = time.monotonic()
    tally = run()
    print(f"check: {tally.summary()}, {time.monotonic() - start:.0f} s", flush=True)
    for failure in tally.failures[:MOST_FAILURES]:
        print(f"  FAILED {failure}")
    if len(tally.failures) > MOST_FAILURES:
        print(f"  ... and {len(tally.failures) - MOST_FAILURES} more")
    report.write_text("\n".join([tally.summary(), *tally.failures]) + "\n")
    return bool(tally.checks) and not tally.failures and not tally.out_of_time


def conditions(
    arguments: argparse.Namespace, device: torch.device, stopwatch: Stopwatch
) -> tuple[Row, float]:
    """What is written beside the rows, and the bytes a second that the bounds go by."""
    found = bandwidth(device, stopwatch)
    about = machine(device)  # after the bandwidth: the clocks of a card at work
    about |= {f"{name}_gb_s": round(value / 1e9) for name, value in found.items()}
    about |= {"dtype": arguments.dtype, "minutes": arguments.minutes}
    print(f"speed: copies {found['copy'] / 1e9:,.0f} GB/s, reads {found['read'] / 1e9:,.0f} GB/s")
    return about, max(found.values())


def save_each(
    measured: Iterable[object],
    rows: list[Row],
    about: Row,
    path: Path,
    budget: Budget,
    show: Callable[[Sequence[Row], Row], None],
) -> None:
    """Saves the rows after each thing that was measured, and shows them at the end."""
    start = time.monotonic()
    try:
        for each in measured:
            _results.write(path, about, rows)
            print(f"  {each} measured, {budget.left:.0f} s left", flush=True)
    finally:
        about["seconds"] = round(time.monotonic() - start)
        _results.write(path, about, rows)
        if rows:
            show(rows, about)
        print(f"written to {path}")


def measure(
    kind: Callable[[argparse.Namespace, torch.device, Stopwatch], Made],
    arguments: argparse.Namespace,
    name: str,
    show: Callable[[Sequence[Row], Row], None],
) -> Made:
    """Makes a measurement, and saves its rows to a file of the folder of results as it goes."""
    device = device_of(arguments)
    budget = Budget(60 * arguments.minutes)
    stopwatch = Stopwatch(device, arguments.replays)
    about, _ = conditions(arguments, device, stopwatch)
    made = kind(arguments, device, stopwatch)
    save_each(made.run(budget), made.rows, about, arguments.out / name, budget, show)
    return made


def signature(about: Row) -> str:
    """The last line below a table."""
    parts = (about.get("gpu", about["cpu"]), about["dtype"], f"torch {about['torch']}")
    return f"{', '.join(parts)}, {about['date']}"
