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

from flashsparse_plugin.known_quality import DENSE, quality
from flashsparse_plugin.known_quality import span as ratios

GPUS = ("nvidia-h200", "nvidia-h100-80gb-hbm3")
FEW_TOKENS = (1, 8, 16)
FAR = _results.FOLDER / GPUS[0] / "far.csv"
# The kinds of FAR in each row of the table.
KINDS = {
    "none": ["fp8"],
    "none, with a kernel that quantizes x": ["fp8 and quantizing"],
    "none, int4": ["int4, Marlin"],
    "none, int4 of torch": ["int4"],
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

BESIDE_DENSE = "2:4, 25% dense"

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


def marlin() -> list[str]:
    """Speedups of Marlin's int4 over cuBLAS on each GPU, as the runs of kernels measured them."""
    return [
        span(
            [
                statistics.geometric_mean(ratios)
                for rows in large(gpu, "spmm")
                if (ratios := [r["dense_us"] / r["int4_us"] for r in rows if "int4_us" in r])
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


def far_at(tokens: int, name: str, figure: str = "us") -> list[float]:
    """Speedups over cuBLAS on an H200 in FAR's run: geometric means over large layers, by kind."""
    rows = [row for row in _results.read(FAR)["rows"] if weights_of(row) > LARGE]
    return [
        statistics.geometric_mean(row["dense_us"] / row[figure] for row in own)
        for kind in KINDS[name]
        if (own := [row for row in rows if (row["kind"], row["tokens"]) == (kind, tokens)])
    ]


def far(name: str, figure: str = "us") -> str:
    """The span of `far_at` over the small numbers of tokens."""
    return span([x for count in FEW_TOKENS for x in far_at(count, name, figure)])


def int4_at(tokens: int) -> float:
    """The speedup of Marlin's int4 on an H200: in FAR's run, or else in those of the kernels."""
    own = far_at(tokens, "none, int4") if FAR.exists() else []
    if own:
        return own[0]
    rows = [row for rows in large(GPUS[0], "spmm") for row in rows if row["tokens"] == tokens]
    return statistics.geometric_mean(r["dense_us"] / r["int4_us"] for r in rows if "int4_us" in r)


def gains(result: str, kind: str, columns: int) -> list[str]:
    """Of a kind in its own run: on an H200 in a model, and back to back if asked; on an H100."""
    figures = [(GPUS[0], "us"), (GPUS[0], "near_us"), (GPUS[1], "us")]
    return [
        span(
            [
                statistics.geometric_mean(ratios)
                for rows in large(gpu, result)
                if (ratios := [r["dense_us"] / r[figure] for r in rows if r["kind"] == kind])
            ]
        )
        or "not timed"
        for gpu, figure in (figures if columns == 3 else figures[::2])
    ]


def cost(*known: tuple[str, str]) -> str:
    """Perplexity / dense after one-shot pruning, and after recovery: spans over the models."""
    found = [each for rule, values in known if (each := quality(rule, values)) is not None]
    if not found:
        return "unknown"
    one_shot, recovered = (
        [x for each in found for x in getattr(each, name)] for name in ("one_shot", "recovered")
    )
    shown = ratios(one_shot)
    return f"{shown}; {ratios(recovered)}" if recovered else shown


def heads() -> list[str]:
    """The columns of the table."""
    h200 = ["H200, in a model", "H200, back to back"] if FAR.exists() else ["H200, 1 to 16 tokens"]
    costs = "perplexity / dense, one-shot; recovered"
    return ["sparsity", *h200, "H100", "CPU, 1 token", costs, "what to do"]


def choices() -> list[list[str]]:
    """The rows of the table: sparsity, speedup on GPUs and on a CPU, quality, advice."""
    codes = {"result": "nm_values"}
    fp8, int4 = pattern("2:4", figure="fp8_us"), marlin()
    if FAR.exists():
        quantizing = far("none, with a kernel that quantizes x")
        fp8 = [f"{far('none')}; {quantizing} with a kernel that quantizes x"] + [
            far("none", "near_us"),
            *fp8[1:],
        ]
        torchs = far("none, int4 of torch")
        own = far("none, int4") or int4[0]
        int4 = [f"{own}; torch's: {torchs}" if torchs else own] * 2 + int4[1:]

    def row(name: str, gpus: list[str], cpu: str, costs: str, advice: str) -> list[str]:
        if FAR.exists():
            gpus = [far(name), far(name, "near_us"), *gpus[1:]]
        return [name, *gpus, cpu, costs, advice]

    trained = "FlashSparse, only if the model was trained with this pattern"
    return [
        [
            "none, exact",
            *gains("lossless", "lossless", len(fp8)),
            "not timed",
            "1.0",
            "FlashSparse `lossless`: 12 bits a weight, exact",
        ],
        [
            "none, fp8",
            *fp8,
            f"dynamic int8: {on_cpu('dense int8')}",
            cost((DENSE, "fp8")),
            "**not FlashSparse**: fp8 in vLLM",
        ],
        [
            "none, int4 (Marlin)",
            *int4,
            f"torchao: {on_cpu('torchao int4 by 128')}",
            cost((DENSE, "int4")),
            "**not FlashSparse**: int4 in vLLM; on a CPU torchao or llama.cpp",
        ],
        row(
            "unstructured, 50%",
            zeros_anywhere(50),
            on_cpu("sparse 50%", "50% anywhere, native"),
            cost(("50%", "16 bits")),
            "GPU: fp8 or int4. CPU: FlashSparse, exact",
        ),
        row(
            "unstructured, 50%, W8A8",
            [span(list(codes_anywhere(50).values())), ""],
            f"int8 values: {on_cpu('50% anywhere, int8')}",
            cost(("50%", "int8")),
            "GPU: as fast as fp8, and less memory. CPU: FlashSparse",
        ),
        row(
            "unstructured, 70%",
            zeros_anywhere(70),
            on_cpu("sparse 70%", "70% anywhere, native"),
            cost(("70%", "16 bits")),
            "after training. H200: fp8 is faster. H100, CPU: FlashSparse, exact",
        ),
        row(
            "unstructured, 80%",
            zeros_anywhere(80),
            on_cpu("sparse 80%"),
            cost(("80%", "16 bits")),
            "after training. H200: as fast as fp8. H100, CPU: FlashSparse, exact",
        ),
        row(
            "unstructured, 90%",
            zeros_anywhere(90),
            on_cpu("sparse 90%"),
            cost(("90%", "16 bits")),
            "FlashSparse, if the model was trained to it",
        ),
        row(
            "2:4",
            pattern("2:4"),
            on_cpu("2:4, native"),
            cost(("2:4", "16 bits")),
            "GPU: no faster than fp8; use fewer bits (next rows)",
        ),
        [
            "2:4, exact 12 bits",
            *gains("lossless", "2:4 e4m7", len(fp8)),
            on_cpu("2:4, native"),  # there they are 16 bits
            cost(("2:4", "16 bits")),
            "FlashSparse, exact, after training",
        ],
        row(
            "2:4, 8-bit values",
            pattern("2:4, fp8_e4m3", "2:4, int8", **codes),
            on_cpu("2:4, fp8_e4m3", "2:4, int8"),
            cost(("2:4", "int8")),
            "FlashSparse up to 16 tokens, after training",
        ),
        row(
            "2:4, 4-bit values",
            pattern("2:4, int4 by 128", **codes),
            on_cpu("2:4, int4 by 128"),
            cost(("2:4", "int4")),
            "FlashSparse, after training",
        ),
        [
            "2:4, 25% dense, 8-bit values",
            *gains("far_hybrid", "2:4 + 25% dense, fp8_e4m3", len(fp8)),
            "not timed",
            cost((BESIDE_DENSE, "fp8"), (BESIDE_DENSE, "int8")),
            "FlashSparse up to 16 tokens, after training",
        ],
        [
            "2:4, 25% dense, 4-bit values",
            *gains("far_hybrid", "2:4 + 25% dense, int4 by 64", len(fp8)),
            "not timed",
            cost((BESIDE_DENSE, "int4")),
            "FlashSparse up to 16 tokens, after training",
        ],
        row(
            "8:32, L = 32 (75%)",
            pattern("8:32, L=32"),
            on_cpu("8:32, L=32, native"),
            cost(("8:32, L=32", "16 bits")),
            trained,
        ),
        row(
            "8:32, L = 32, 8-bit values",
            pattern("8:32, L=32, fp8_e4m3", "8:32, L=32, int8", **codes),
            on_cpu("8:32, L=32, fp8_e4m3", "8:32, L=32, int8"),
            cost(("8:32, L=32", "int8")),
            trained,
        ),
    ]
