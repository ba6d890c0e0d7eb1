# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of what spmm.py measured: formats side by side, and goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import _spmm_goals
from _markdown import Result, gpu_conditions, markdown, mean_of

OPT = ("OPT-30B", "OPT-66B", "OPT-175B")
LLAMA = ("Llama-3-8B", "Llama-3-70B")
SHOWN = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens; others serve the dataflow


def ratios(result: Result, models: Sequence[str]) -> str:
    """Dense time / time, geometric means over the layers of some models: zeros and formats down."""
    rows = [r for r in result["rows"] if r["model"] in models and r["tokens"] in SHOWN]
    tokens = sorted({row["tokens"] for row in rows})

    def by_tokens(figure: str, found: Sequence[Result]) -> list[str]:
        return [mean_of([r for r in found if r["tokens"] == count], figure) for count in tokens]

    cells = []
    for sparsity in sorted({row["sparsity"] for row in rows}):
        for format in _spmm_goals.formats_of(rows):
            own = [r for r in rows if (r["sparsity"], r["format"]) == (sparsity, format)]
            first = [f"**{sparsity}% zeros**, `{format}`", mean_of(own, "ratio_bound")]
            cells.append([*first, *by_tokens("ratio", own)])
    for name, bound in (("fp8", "2.00"), ("int4", "")):
        dense = [r | {"it": r["dense_us"] / r[f"{name}_us"]} for r in rows if r.get(f"{name}_us")]
        if dense:
            cells.append([f"{name}, dense", bound, *by_tokens("it", dense)])
    layers = len({row["shape"] for row in rows})
    header = [f"{layers} layers, tokens:", "bound", *map(str, tokens)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def by_turns(result: Result) -> str:
    """Dense time / time of prompts beside either dense weight, geometric means over all layers."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    beside = {"80% zeros": rows, "no zeros": _spmm_goals.over_unpruned(rows)}
    cells = []
    for sparsity in sorted({row["sparsity"] for row in rows}):
        for dense, found in beside.items():
            own = [row for row in found if row["sparsity"] == sparsity]
            means = (mean_of([r for r in own if r["tokens"] == n], "ratio") for n in tokens)
            cells.append([f"{sparsity}%, beside a dense weight with {dense}", *means])
    layers = len({row["shape"] for row in rows})
    header = [f"zeros, {layers} layers, tokens:", *map(str, tokens)]
    return markdown(header, cells) + gpu_conditions(result["about"])


def goals(result: Result, wanted: Iterable[_spmm_goals.Goal], part: str) -> str:
    """What the layers should gain and do, by format and zeros; what reaches its goal is bold.

    Args:
        result: The measurements.
        wanted: The goals.
        part: "decoding" or "prompts", whose slowest layer the last line names.
    """
    rows, about = result["rows"], result["about"]
    found = _spmm_goals.reached(wanted, rows, about["gpu"])
    zeros = list(found[0][0].gains)
    cells = []
    for goal, by_format in found:
        cells.append([f"{goal.title}: goal", *(f"{gain:g}" for gain in goal.gains.values())])
        for name, gains in by_format.items():
            line = [f"`{name}`" if name != _spmm_goals.BEST else name]
            for percent, least in goal.gains.items():
                gain = gains.get(percent)
                figure = "" if gain is None else f"{gain:.2f}"
                line.append(f"**{figure}**" if gain is not None and gain >= least else figure)
            cells.append(line)
    slowest = _spmm_goals.worst(rows)[part]
    text = markdown(["dense time / time, zeros:", *(f"{each}%" for each in zeros)], cells)
    return text + (
        f"\nThe slowest layer, by its fastest format: {slowest['ratio']:.2f} ({slowest['shape']}, "
        f"{slowest['tokens']} tokens, {slowest['sparsity']}% zeros, `{slowest['format']}`); "
        f"goal {_spmm_goals.LEAST[part]}.\n" + gpu_conditions(about).lstrip("\n")
    )
