# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of products by codes, and of when their kernels begin."""

from __future__ import annotations

from _markdown import Result, gpu_conditions, markdown

LAYERS = ("28672x7168", "4096x14336", "4096x4096")
ROWS = {  # what a line shows: values, and ways of which the fastest counts
    "int8": ("2:4, int8", ("few", "many")),
    "int8 by 128": ("2:4, int8 by 128", ("few", "many")),
    "int8 by 32": ("2:4, int8 by 32", ("few", "many")),
    "int8 by 128, unpacked": ("2:4, int8 by 128", ("library",)),
    "int8 x int8, few tokens": ("2:4, int8", ("few rounded",)),
    "int8 x int8, many": ("2:4, int8", ("many rounded",)),
}


BEGINS = {  # of the kernel for few tokens, in the order in which they were tried
    "when the kernel before it has ended": "waits",
    "beside its end; then it waits, and copies x and weights": "early",
    "a stage of weights, then it waits, and copies x": "one stage before x",
    "two stages of weights, then x": "two stages before x",
    "all stages of weights; one warp waits, and copies x": "all stages before x",
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
    return markdown(["µs, tokens:", *map(str, tokens)], cells) + gpu_conditions(about)


def begins(result: Result) -> str:
    """Microseconds for 8 tokens: when the kernel begins down, layers and values across."""
    points = [
        (layer, values)
        for layer in ("28672x7168", "57344x8192", "4096x14336", "4096x4096")
        for values in ("2:4, int8", "2:4, int4 by 128")
    ]
    found = {
        (row["begins"], row["layer"], row["values"]): row["us"]
        for row in result["rows"]
        if row["kernel"] == "few" and row["tokens"] == 8
    }
    cells = [
        [name, *(f"{found[begins, *point]:.1f}" for point in points)]
        for name, begins in BEGINS.items()
    ]
    header = [f"{layer}, {values.split()[1]}" for layer, values in points]
    return markdown(["µs, 8 tokens", *header], cells) + gpu_conditions(result["about"])
