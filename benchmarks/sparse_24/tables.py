# SPDX-License-Identifier: Apache-2.0
"""The documents' table of products by codes of 8 bits."""

from __future__ import annotations

from _markdown import Result, markdown

LAYERS = ("28672x7168", "4096x14336", "4096x4096")
ROWS = {  # what a line shows: values, and ways of which the fastest counts
    "int8": ("2:4, int8", ("few", "many")),
    "int8 by 128": ("2:4, int8 by 128", ("few", "many")),
    "int8 by 32": ("2:4, int8 by 32", ("few", "many")),
    "int8 by 128, unpacked": ("2:4, int8 by 128", ("library",)),
    "int8 x int8, few tokens": ("2:4, int8", ("few rounded",)),
    "int8 x int8, many": ("2:4, int8", ("many rounded",)),
}


def codes(result: Result) -> str:
    """Microseconds of some layers: values and kernels down, tokens across."""
    about, rows = result["about"], result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for layer in LAYERS:
        for name, (values, ways) in ROWS.items():
            found = [
                min(
                    row["us"]
                    for row in rows
                    if (row["layer"], row["values"], row["tokens"]) == (layer, values, count)
                    and row["way"] in ways
                )
                for count in tokens
            ]
            cells.append([f"{layer}, {name}", *(f"{us:.1f}" for us in found)])
    return (
        markdown(["µs, tokens:", *map(str, tokens)], cells)
        + f"\n{about['gpu']}, {about['dtype']}, driver {about['driver_version']}, "
        f"torch {about['torch']}, {about['date']}.\n"
    )
