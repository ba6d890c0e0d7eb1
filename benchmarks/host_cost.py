# SPDX-License-Identifier: Apache-2.0
"""What does a call of a packed layer cost the host, beside nn.Linear's?

    python benchmarks/host_cost.py
    python benchmarks/host_cost.py --device cuda

One token in eager mode, layers without bias, so small that the product hardly counts on a CPU, and
is done before the next call on a GPU. A time is the calling thread's processor time a call, the
median of many samples that take turns; a ratio is the median over the turns. No call waits for the
GPU. There each format multiplies by its own kernel, whatever the dataflow would choose for such a
layer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import _measure
import _results
import torch
from rich import box
from rich.table import Table
from torch import Tensor, nn

import flashsparse_plugin as fs
from flashsparse_plugin.formats import format_names, get_format
from flashsparse_plugin.plan import Plan

MODES: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "grad enabled": nullcontext,  # which nothing asks for
}
DENSE = "nn.Linear"
GOAL = 1.25  # times what nn.Linear costs
CALLS, WARM_UP = 100, 10
Call = Callable[[Tensor], Tensor]


def layers(size: int, device: torch.device) -> dict[str, nn.Module]:
    """nn.Linear, and a packed layer of each format and pattern."""
    torch.manual_seed(0)
    dense = nn.Linear(size, size, bias=False, dtype=torch.bfloat16, device=device)
    dense.requires_grad_(False)
    dense.weight.data *= torch.rand_like(dense.weight) > 0.8
    found: dict[str, nn.Module] = {DENSE: dense}
    for format in map(get_format, format_names()):
        for scheme in format.examples():
            if scheme.dtype != torch.bfloat16:
                continue
            weight = format.conform(dense.weight.data, scheme)
            layer = fs.SparseLinear.pack(weight, dense.bias, scheme)
            if layer.plan is not None:  # the kernels, also where it would unpack
                layer.plan = Plan.only("sparse")
            found[scheme.title] = layer
    return found


def samples(calls: Mapping[str, Call], x: Tensor, repeats: int) -> dict[str, list[float]]:
    """Microseconds of processor time a call, `repeats` samples by name."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            for _ in range(WARM_UP):
                call(x)
            wait(x)
            start = time.thread_time()
            for _ in range(CALLS):
                call(x)
            found[name].append((time.thread_time() - start) / CALLS * 1e6)
            wait(x)
    return found


def wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def measure(size: int, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    x = torch.randn(1, 1, size, dtype=torch.bfloat16, device=device)
    calls: dict[str, Call] = dict(layers(size, device))
    rows = []
    for mode, scope in MODES.items():
        with scope():
            found = samples(calls, x, repeats)
        for name, own in found.items():
            ratio = _measure.median_ratio(own, found[DENSE])
            us = round(statistics.median(own), 2)
            rows.append({"layer": name, "mode": mode, "us": us, "ratio": round(ratio, 2)})
    return rows


def show(rows: list[dict[str, Any]], about: Mapping[str, Any]) -> None:
    """Prints microseconds a call, layers down and modes across."""
    machine = about.get("gpu", about["cpu"])
    table = Table(
        title=f"Host's time of a call in µs, {machine}",
        caption=f"one token, {about['size']}x{about['size']}, no bias, bfloat16, torch "
        f"{about['torch']}; in brackets against nn.Linear, green up to {GOAL}",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("layer")
    for mode in MODES:
        table.add_column(mode, justify="right", no_wrap=True)
    for name in dict.fromkeys(row["layer"] for row in rows):
        table.add_row(name, *(_cell(row) for row in rows if row["layer"] == name))
    _measure.console(width=80).print(table)


def _cell(row: Mapping[str, Any]) -> str:
    if row["layer"] == DENSE:
        return f"[dim]{row['us']:.1f}[/]       "
    colour = "green" if row["ratio"] <= GOAL else "red"
    return f"{row['us']:.1f} [{colour}]({row['ratio']:.2f})[/]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--size", type=int, help="rows and columns (64; on a GPU 2048)")
    parser.add_argument("--repeats", type=int, default=101, help="samples of each layer")
    parser.add_argument("--out", type=Path, help="default: host_cost.csv in benchmarks/results")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    size = arguments.size or (64 if device.type == "cpu" else 2048)
    about = _measure.machine() | {"size": size, "repeats": arguments.repeats}
    if device.type == "cuda":
        about = {"gpu": torch.cuda.get_device_name(device)} | about
    rows = measure(size, device, arguments.repeats)
    show(rows, about)
    folder = _results.folder_of(about.get("gpu", about["cpu"]))
    path = arguments.out or folder / "host_cost.csv"
    _results.write(path, about, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
