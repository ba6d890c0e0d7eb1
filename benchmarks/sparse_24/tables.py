# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of quantized 2:4 products, and of what they load before PDL's wait."""

from __future__ import annotations

from itertools import product

from _markdown import Result, gpu_conditions, markdown

LAYERS = ("28672x7168", "4096x14336", "4096x4096")
ROWS = {  # what a line shows: values, and ways of which the fastest counts
    "int8": ("2:4, int8", ("few", "many")),
    "int8 by 128": ("2:4, int8 by 128", ("few", "many")),
    "int8 by 32": ("2:4, int8 by 32", ("few", "many")),
    "int8 by 128, unpacked": ("2:4, int8 by 128", ("library",)),
    "int8 x int8, decode kernel": ("2:4, int8", ("few rounded",)),
    "int8 x int8, wgmma": ("2:4, int8", ("many rounded",)),
}


BEGINS = {  # what the decode kernel does before the wait, in the order of the experiments
    "no PDL": "waits",
    "PDL, nothing before the wait": "early",
    "one stage of weights": "one stage before x",
    "two stages of weights": "two stages before x",
    "all stages; one warp waits and copies x": "all stages before x",
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


RINGS = {  # what a column shows: of the launches that fit, the fastest
    "registers": {"kernel": "registers"},
    **{
        f"ring, {rows} rows a CTA": {"kernel": "ring", "rows": rows} for rows in range(128, 385, 64)
    },
    "mma.sp": {"kernel": "few"},
}


def rings(result: Result) -> str:
    """Microseconds of wgmma by where its weights are: values, tokens, layers down; launches across.

    Tiles of all tokens at once.
    """
    rows = result["rows"]
    points = [
        (values, tokens, layer)
        for values, tokens in product(("fp8 x fp8", "fp8_e4m3"), (32, 64))
        for layer in ("4096x4096", "28672x4096", "28672x7168", "57344x8192", "8192x28672")
    ]
    cells = []
    for values, tokens, layer in points:
        line = [f"{values}, {tokens} tokens, {layer}"]
        for wanted in RINGS.values():
            found = [
                row["us"]
                for row in rows
                if (row["values"], row["tokens"], row["layer"]) == (values, tokens, layer)
                and all(row[key] == value for key, value in wanted.items())
                and (row["kernel"] != "ring" or row["tile_tokens"] == tokens)
            ]
            line.append(f"{min(found):.1f}" if found else "")
        cells.append(line)
    return markdown(["µs", *RINGS], cells) + gpu_conditions(result["about"])


BEYOND = (  # values as nm.py calls them, tokens, and what multiplies them
    ("2:4, fp8_e4m3", 8, "mma.sp"),
    ("2:4, int8 x int8", 8, "mma.sp, x rounded in front"),
    ("2:4, fp8_e4m3", 32, "wgmma"),
    ("2:4, fp8 x fp8", 32, "wgmma"),
    ("2:4, fp8 x fp8", 64, "wgmma"),
)


def beyond(result: Result) -> str:
    """Microseconds that products take more than their bytes: values and tokens down, layers across.

    The bytes are those of the weight, x and y, at the bandwidth that was measured.
    """
    times = {
        (row["pattern"], row["tokens"], row["shape"]): row["us"] * (1 - row["of_bound"])
        for row in result["rows"]
        if "of_bound" in row
    }
    layers = ("28672x4096", "28672x7168", "57344x8192", "8192x28672", "7168x28672")
    cells = [
        [
            f"{values.removeprefix('2:4, ')}, {tokens} tokens, {kernel}",
            *(f"{times[values, tokens, layer]:.1f}" for layer in layers),
        ]
        for values, tokens, kernel in BEYOND
    ]
    return markdown(["µs beyond the bytes", *layers], cells) + gpu_conditions(result["about"])
