# SPDX-License-Identifier: Apache-2.0
"""How fast does this CPU pack, unpack, check and transcode, and how good is the word order?

    python benchmarks/cpu_pack.py
    FLASHSPARSE_CPU_CAPABILITY=portable python benchmarks/cpu_pack.py

Speeds are gigabytes of dense weight a second and core. Store cycles are what a GPU needs to store
32 consecutive words to shared memory, 1.00 at best: the most different 4-byte words that fall into
one bank, averaged over groups.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import _measure
import torch
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.ops import ops

BFLOAT16 = torch.bfloat16
PACK_GOAL = 1.5  # GB/s and core
MASKS = ("50%", "70%", "80%", "90%", "80%, skewed rows")


def pruned_weight(shape: tuple[int, int], mask: str) -> Tensor:
    """Random zeros; skewed: the density of rows is lognormal with sigma 0.5."""
    torch.manual_seed(0)
    density = torch.full((shape[0], 1), 1 - int(mask.split("%")[0]) / 100)
    if "skewed" in mask:
        density = density * torch.exp(0.5 * torch.randn(shape[0], 1) - 0.125)
    return (torch.randn(shape) * (torch.rand(shape) < density)).to(BFLOAT16)


def store_cycles(words: Tensor, offsets: Tensor, tiles: int = 100) -> float:
    """Mean over the groups of the first tiles."""
    locations = words.long() & 0xFFFF
    cycles = groups = 0.0
    for tile in range(min(tiles, len(offsets) - 1)):
        own = locations[offsets[tile] : offsets[tile + 1]] // 2
        for group in own.split(32):
            cycles += int(torch.bincount(group.unique() % 32).max())
            groups += len(group) / 32
    return cycles / groups


def measure(shape: tuple[int, int], mask: str, repeats: int) -> dict[str, Any]:
    weight = pruned_weight(shape, mask)
    words, bitmap = ops.tiled_csl_pack(weight), ops.interleaved_bitmap_pack(weight)
    samples = _measure.interleaved(
        {
            "pack": lambda: ops.tiled_csl_pack(weight),
            "validate": lambda: ops.tiled_csl_validate(*words, *shape),
            "unpack": lambda: ops.tiled_csl_unpack(*words, *shape, BFLOAT16),
            "to bitmap": lambda: ops.tiled_csl_to_interleaved_bitmap(*words, *shape),
            "bitmap pack": lambda: ops.interleaved_bitmap_pack(weight),
            "bitmap unpack": lambda: ops.interleaved_bitmap_unpack(*bitmap, *shape, BFLOAT16),
        },
        repeats,
    )
    gigabytes = weight.nbytes / 1e9 / torch.get_num_threads()
    speeds = {name: round(gigabytes / statistics.median(own), 2) for name, own in samples.items()}
    cycles = round(store_cycles(*words), 3)
    return {"shape": f"{shape[0]}x{shape[1]}", "zeros": mask, **speeds, "store cycles": cycles}


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
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    about = _measure.machine()
    # Outputs of the first fit into memory that the process has already: the kernels' own speed.
    # Those of the second come fresh from the operating system each time.
    shapes = [(1024, 4096), (14336, 4096)]
    rows = [measure(shape, mask, arguments.repeats) for shape in shapes for mask in MASKS]
    show(rows, about)
    path = _measure.write(f"cpu_pack_{about['capability']}", about, rows)
    print(f"written to {path}.csv and .json")


if __name__ == "__main__":
    main()
