# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the documents from benchmarks/results: no figure is typed by hand.

    python benchmarks/tables.py            writes them
    python benchmarks/tables.py --check    fails where one is not what the results say

A table stands between `<!-- table: NAME results/FILE.json -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/cpu.md", "docs/kernels.md")
MARKED = re.compile(r"(<!-- table: (\w+) (\S+) -->\n).*?(<!-- end of table -->)", re.S)

Result = dict[str, Any]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def conditions(about: Result) -> str:
    return (
        f"\n{about['cpu']}, {about['threads']} threads, {about['capability']}, "
        f"torch {about['torch']}, {about['date'][:10]}.\n"
    )


def linear(result: Result, baseline: str, tokens: Sequence[int]) -> str:
    """Ratios to one baseline at 4096x4096: kernels down, tokens across."""
    rows = [row for row in result["rows"] if row["shape"] == "4096x4096"]
    lines: dict[tuple[str, int], dict[int, Result]] = {}
    for row in rows:
        if row["baseline"] == baseline and row["kernel"] != "sparse stored":
            lines.setdefault((row["kernel"], row["sparsity"]), {})[row["tokens"]] = row
    cells = []
    for (kernel, sparsity), by_tokens in lines.items():
        if kernel == baseline:
            name = f"`F.linear`, {'fp32' if kernel.endswith('fp32') else 'bf16'}, µs"
            values = [f"{by_tokens[count]['microseconds']:.0f}" for count in tokens]
        else:
            name = f"**sparse, {sparsity}% zeros**" if sparsity else NAMES[kernel]
            values = [f"{by_tokens[count]['ratio']:.2f}" for count in tokens]
        cells.append([name, *values])
    header = ["4096x4096, tokens:", *map(str, tokens)]
    return markdown(header, cells) + conditions(result["about"])


def busy(result: Result) -> str:
    tokens = list(dict.fromkeys(row["tokens"] for row in result["rows"]))
    cells = []
    for kernel in dict.fromkeys(row["kernel"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["kernel"] == kernel]
        zeros = f", {rows[0]['sparsity']}% zeros" if rows[0]["sparsity"] else ""
        name = kernel.partition(",")[0] + zeros
        cells.append([name, *(f"{row['ratio']:.2f}" for row in rows)])
    return markdown(["4096x4096, tokens:", *map(str, tokens)], cells) + conditions(result["about"])


def pack(result: Result) -> str:
    header = list(result["rows"][0])
    cells = [[str(row[key]) for key in header] for row in result["rows"]]
    return markdown(header, cells) + conditions(result["about"])


def spmm(result: Result, models: Sequence[str]) -> str:
    """Dense time / time, geometric means over the layers of some models: zeros down."""
    rows = [row for row in result["rows"] if row["model"] in models and not row["config"]]
    tokens = sorted({row["tokens"] for row in rows})

    def mean(figure: str, found: Sequence[Result]) -> str:
        values = [row[figure] for row in found if row[figure]]
        return f"{statistics.geometric_mean(values):.2f}" if values else ""

    def by_tokens(figure: str, found: Sequence[Result]) -> list[str]:
        return [mean(figure, [r for r in found if r["tokens"] == count]) for count in tokens]

    cells = []
    for sparsity in sorted({row["sparsity"] for row in rows}):
        own = [row for row in rows if row["sparsity"] == sparsity]
        name = f"{sparsity}% zeros"
        cells.append([f"**{name}**", mean("ratio_bound", own), *by_tokens("ratio", own)])
    cells.append(["fp8", "2.00", *by_tokens("fp8_ratio", rows)])
    layers = len({row["shape"] for row in rows})
    about = result["about"]
    return markdown([f"{layers} layers, tokens:", "at most", *map(str, tokens)], cells) + (
        f"\n{about['gpu']}, {about['dtype']}, reads {about['read_gb_s']} GB/s, driver "
        f"{about.get('driver_version', 'unknown')}, torch {about['torch']}, {about['date'][:10]}.\n"
    )


OPT = ("OPT-30B", "OPT-66B", "OPT-175B")
LLAMA = ("Llama-3-8B", "Llama-3-70B")

NAMES = {
    "dense prepacked": "oneDNN, bf16 weights reordered beforehand",
    "dense int8": "int8, dynamically quantized",
}

TABLES: dict[str, Callable[[Result], str]] = {
    "linear_bf16": lambda result: linear(result, "dense", (1, 2, 4, 8, 16, 32, 128, 1024)),
    "linear_fp32": lambda result: linear(result, "dense fp32", (1, 2, 4, 8, 16, 32, 128, 1024)),
    "linear_avx2": lambda result: linear(result, "dense fp32", (1, 2, 4, 8, 32)),
    "busy": busy,
    "pack": pack,
    "spmm_opt": lambda result: spmm(result, OPT),
    "spmm_llama": lambda result: spmm(result, LLAMA),
}


def rewritten(text: str) -> str:
    """The document with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        start, name, path, end = match.groups()
        result = json.loads((ROOT / "benchmarks" / path).read_text())
        return f"{start}{TABLES[name](result)}{end}"

    return MARKED.sub(table, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    stale = 0
    for name in DOCUMENTS:
        path = ROOT / name
        old, new = path.read_text(), rewritten(path.read_text())
        if old == new:
            continue
        stale += 1
        if check:
            print(f"{name} differs from benchmarks/results: run python benchmarks/tables.py")
        else:
            path.write_text(new)
            print(f"{name} written")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
