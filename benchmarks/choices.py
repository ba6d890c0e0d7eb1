# SPDX-License-Identifier: Apache-2.0
"""The table of "Is it for you?": what each kind of zeros gains, and what to do about it.

The H200's figures are of results/nvidia-h200/far.csv as soon as it is there, from one run: products
after another kernel (us) and back to back (near_us), each beside the fastest cuBLAS (dense_us), by
shape, tokens and kind, which is named as in KINDS. Until then they are back to back, each from the
run of its kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import _results
import tiled_bitmap.tables
from _spmm_goals import LARGE, fastest, weights_of

GPUS = ("nvidia-h200", "nvidia-h100-80gb-hbm3")
FEW_TOKENS = (1, 8, 16)
FAR = _results.FOLDER / GPUS[0] / "far.csv"
# The kinds of FAR in each row of the table.
KINDS = {
    "none": ["fp8"],
    "none, with a kernel that quantizes x": ["fp8 and quantizing"],
    "unstructured, 50%": ["50%"],
    "unstructured, 50%, W8A8": ["50%, int8 x int8"],
    "unstructured, 70%": ["70%"],
    "unstructured, 80%": ["80%"],
    "unstructured, 90%": ["90%"],
    "2:4": ["2:4"],
    "2:4, 8-bit values": ["2:4, fp8_e4m3", "2:4, int8"],
    "2:4, 4-bit values": ["2:4, int4 by 128"],
    "8:32, L = 32 (75%)": ["8:32, L=32"],
    "8:32, L = 32, 8-bit values": ["8:32, L=32, fp8_e4m3", "8:32, L=32, int8"],
}

Row = dict[str, Any]


def span(figures: list[float]) -> str:
    """The least and the largest figure, or one where they are alike; "" where there is none."""
    if not figures:
        return ""
    low, high = (f"{each(figures):.1f}" for each in (min, max))
    return low if low == high else f"{low} to {high}"


def large(gpu: str, name: str) -> Iterator[list[Row]]:
    """The rows of large layers in a result: a list for each small number of tokens."""
    path = _results.FOLDER / gpu / f"{name}.csv"
    if not path.exists():
        return
    rows = _results.read(path)["rows"]
    for count in FEW_TOKENS:
        yield [row for row in rows if row["tokens"] == count and weights_of(row) > LARGE]


def zeros_anywhere(percent: int) -> list[str]:
    """Speedups over cuBLAS of the fastest format on each GPU: geometric means over large layers."""
    return [
        span(
            [
                statistics.geometric_mean(
                    row["ratio"] for row in fastest(rows) if row["sparsity"] == percent
                )
                for rows in large(gpu, "spmm")
            ]
        )
        for gpu in GPUS
    ]


def pattern(*names: str, result: str = "nm", figure: str = "us") -> list[str]:
    """Speedups of N:M patterns over cuBLAS on each GPU: geometric means over large layers."""
    return [
        span(
            [
                statistics.geometric_mean(
                    row["dense_us"] / row[figure] for row in rows if row["pattern"] == name
                )
                for rows in large(gpu, result)
                for name in names
            ]
        )
        for gpu in GPUS
    ]


def codes_anywhere(percent: int) -> dict[int, float]:
    """Speedups over cuBLAS of tiled_bitmap with int8 on both sides on an H200, by tokens.

    By the launch that its plan takes, or the fastest where that was not measured; geometric means
    over large layers.
    """
    path = _results.FOLDER / GPUS[0] / "tiled_bitmap_sweep_codes.csv"
    own = {
        (f"{row['out']}x{row['in']}", row["tokens"]): tiled_bitmap.tables.planned_us(row)
        for row in _results.read(path)["rows"]
        if (row["values"], row["zeros"]) == ("rounded", percent)
    }
    found = {}
    for rows in large(GPUS[0], "spmm"):
        points = {(row["shape"], row["tokens"]): row["dense_us"] for row in rows}
        ratios = [us / own[point] for point, us in points.items() if point in own]
        found[rows[0]["tokens"]] = statistics.geometric_mean(ratios)
    return found


def on_cpu(*kernels: str) -> str:
    """Speedups over torch's bfloat16 layer for one token, by name or name and share of zeros."""
    found = []
    for name in ("cpu_linear_avx512", "cpu_values_avx512"):
        for row in _results.read(_results.FOLDER / "amd-epyc" / f"{name}.csv")["rows"]:
            zeros = f" {row['sparsity']}%" if row.get("sparsity") else ""
            own = (row["shape"], row["tokens"], row["baseline"]) == ("4096x4096", 1, "dense")
            if own and row["kernel"] + zeros in kernels:
                found.append(1 / row["ratio"])
    return span(found)


def far(name: str, figure: str = "us") -> str:
    """Speedups over cuBLAS on an H200 in FAR's run: geometric means over large layers."""
    rows = [row for row in _results.read(FAR)["rows"] if weights_of(row) > LARGE]
    return span(
        [
            statistics.geometric_mean(row["dense_us"] / row[figure] for row in own)
            for kind in KINDS[name]
            for count in FEW_TOKENS
            if (own := [row for row in rows if (row["kind"], row["tokens"]) == (kind, count)])
        ]
    )


def heads() -> list[str]:
    """The columns of the table."""
    h200 = ["H200, in a model", "H200, back to back"] if FAR.exists() else ["H200, 1 to 16 tokens"]
    return ["sparsity", *h200, "H100", "CPU, 1 token", "what to do"]


def choices() -> list[list[str]]:
    """The rows of the table: sparsity, speedup on GPUs and on a CPU, advice."""
    codes = {"result": "nm_values"}
    fp8 = [f"fp8: {each}" for each in pattern("2:4", figure="fp8_us")]
    if FAR.exists():
        quantizing = far("none, with a kernel that quantizes x")
        both = [f"fp8: {far('none')}; {quantizing} with a kernel that quantizes x"]
        fp8 = [*both, f"fp8: {far('none', 'near_us')}", *fp8[1:]]

    def row(name: str, gpus: list[str], cpu: str, advice: str) -> list[str]:
        if FAR.exists():
            gpus = [far(name), far(name, "near_us"), *gpus[1:]]
        return [name, *gpus, cpu, advice]

    return [
        [
            "none",
            *fp8,
            f"dynamic int8: {on_cpu('dense int8')}; int4: {on_cpu('torchao int4 by 128')}",
            "**not FlashSparse**. GPU: fp8 or int4 in vLLM. CPU: int4 of torchao or llama.cpp",
        ],
        row(
            "unstructured, 50%",
            zeros_anywhere(50),
            on_cpu("sparse 50%", "50% anywhere, native"),
            "GPU: fp8. CPU: FlashSparse, exact",
        ),
        row(
            "unstructured, 50%, W8A8",
            [span(list(codes_anywhere(50).values())), ""],
            f"int8 values: {on_cpu('50% anywhere, int8')}",
            "FlashSparse; fp8 on layers of less than 100 million weights",
        ),
        row(
            "unstructured, 70%",
            zeros_anywhere(70),
            on_cpu("sparse 70%", "70% anywhere, native"),
            "FlashSparse on an H100 and on a CPU; on an H200 fp8, or FlashSparse for exactness",
        ),
        row(
            "unstructured, 80%",
            zeros_anywhere(80),
            on_cpu("sparse 80%"),
            "FlashSparse, exact; on an H200 fp8 above 8 tokens or below 100 million weights",
        ),
        row("unstructured, 90%", zeros_anywhere(90), on_cpu("sparse 90%"), "FlashSparse"),
        row(
            "2:4",
            pattern("2:4"),
            on_cpu("2:4, native"),
            "GPU: no faster than fp8; use 8-bit values (next row)",
        ),
        row(
            "2:4, 8-bit values",
            pattern("2:4, fp8_e4m3", "2:4, int8", **codes),
            on_cpu("2:4, fp8_e4m3", "2:4, int8"),
            "FlashSparse up to 16 tokens",
        ),
        row(
            "2:4, 4-bit values",
            pattern("2:4, int4 by 128", **codes),
            on_cpu("2:4, int4 by 128"),
            "FlashSparse",
        ),
        row(
            "8:32, L = 32 (75%)",
            pattern("8:32, L=32"),
            on_cpu("8:32, L=32, native"),
            "FlashSparse, if the model was trained with it",
        ),
        row(
            "8:32, L = 32, 8-bit values",
            pattern("8:32, L=32, fp8_e4m3", "8:32, L=32, int8", **codes),
            on_cpu("8:32, L=32, fp8_e4m3", "8:32, L=32, int8"),
            "FlashSparse, if the model was trained with it",
        ),
    ]
