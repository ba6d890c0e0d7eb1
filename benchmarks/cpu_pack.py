# SPDX-License-Identifier: Apache-2.0
"""How fast does this CPU pack, validate, unpack and transcode, and how good is the word order?

    python benchmarks/cpu_pack.py --format tiled_bitmap
    FLASHSPARSE_CPU_CAPABILITY=portable python benchmarks/cpu_pack.py

Speeds are gigabytes of dense weight a second of a core's time, whatever else the machine does.
"bitmap" is the interleaved bitmap as which every unstructured format runs on a CPU. "store cycles"
are the cycles in which a GPU stores 32 consecutive words of Tiled-CSL to shared memory, 1.00 at
best.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import _formats
import _measure
import _results
import torch
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names

BFLOAT16 = torch.bfloat16
PACK_GOAL = 1.5  # GB/s and core
MASKS = ("50%", "70%", "80%", "90%", "80%, skewed rows")


def pruned_weight(shape: tuple[int, int], mask: str) -> Tensor:
    """A weight with random zeros; a skewed one has rows of lognormal density, sigma 0.5."""
    torch.manual_seed(0)
    density = torch.full((shape[0], 1), 1 - int(mask.split("%")[0]) / 100)
    if "skewed" in mask:
        density = density * torch.exp(0.5 * torch.randn(shape[0], 1) - 0.125)
    return (torch.randn(shape) * (torch.rand(shape) < density)).to(BFLOAT16)


def measure(format: str, shape: tuple[int, int], mask: str, repeats: int) -> dict[str, Any]:
    weight = pruned_weight(shape, mask)
    stored, prepared = fs.pack(weight, format), _formats.packed_for_kernels(weight, format)
    samples = _measure.interleaved(
        {
            "pack": lambda: fs.pack(weight, format),
            "validate": stored.validate,
            "unpack": stored.unpack,
            "to bitmap": lambda: stored.prepare("cpu"),
            "bitmap pack": lambda: fs.SparseLinear.from_weight(weight, format=format),
            "bitmap unpack": prepared.unpack,
        },
        repeats,
        clock=time.process_time,
    )
    gigabytes = weight.nbytes / 1e9
    row = {"shape": f"{shape[0]}x{shape[1]}", "zeros": mask}
    row |= {name: round(gigabytes / statistics.median(own), 2) for name, own in samples.items()}
    if own := _formats.room(format, "words"):
        row["store cycles"] = round(own.store_cycles(stored), 3)
    return row


def show(rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    table = Table(
        title=f"GB of dense bf16 a second and core, {about['cpu']}, {about['threads']} threads",
        caption=f"{about['capability']}; goal for pack: {PACK_GOAL} GB/s a core",
    )
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("shape", "zeros") else "right")
    for row in rows:
        cells = [str(value) for value in row.values()]
        if about["capability"] == "avx512":
            place = list(row).index("pack")
            color = "green" if row["pack"] >= PACK_GOAL else "red"
            cells[place] = f"[{color}]{cells[place]}[/]"
        table.add_row(*cells)
    _measure.console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", default=DEFAULT_FORMAT, choices=format_names())
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    about = _measure.machine() | {"format": arguments.format}
    # Outputs of the first shape fit into memory that the process has already, so that the kernels'
    # own speed shows. Outputs of the second come fresh from the operating system each time.
    shapes = [(1024, 4096), (14336, 4096)]
    rows = [
        measure(arguments.format, shape, mask, arguments.repeats)
        for shape in shapes
        for mask in MASKS
    ]
    show(rows, about)
    name = f"cpu_pack_{arguments.format}_{about['capability']}.csv"
    path = _results.folder_of(about["cpu"]) / name
    _results.write(path, about, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
