# SPDX-License-Identifier: Apache-2.0
"""Tables of the CPU kernels and of what a call costs the host."""

from __future__ import annotations

from collections.abc import Sequence

from _markdown import Result, conditions, gpu_conditions, markdown

NAMES = {
    "dense prepacked": "oneDNN, bf16 weights reordered beforehand",
    "dense int8": "int8, dynamically quantized",
    "torchao int8": "torchao, int8 weights",
    "torchao int4 by 128": "torchao, int4 weights by 128",
}


def linear(result: Result, baseline: str, tokens: Sequence[int]) -> str:
    """Time of one baseline / time at 4096x4096: kernels down, tokens across."""
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
            values = [f"{1 / by_tokens[count]['ratio']:.2f}" for count in tokens]
        cells.append([name, *values])
    header = ["4096x4096, tokens:", *map(str, tokens)]
    return markdown(header, cells) + conditions(result["about"])


def cpu_values(result: Result) -> str:
    """Time of torch's bfloat16 layer / time for one token and more, by shape and kernel."""
    rows = [row for row in result["rows"] if row["baseline"] == "dense"]
    tokens = sorted({row["tokens"] for row in rows})
    text = ""
    for shape in dict.fromkeys(row["shape"] for row in rows):
        own = [row for row in rows if row["shape"] == shape]
        cells = []
        for kernel in dict.fromkeys(row["kernel"] for row in own):
            if kernel == "dense":
                continue
            found = {row["tokens"]: row["ratio"] for row in own if row["kernel"] == kernel}
            name = NAMES.get(kernel, f"**{kernel}**")
            cells.append([name, *(f"{1 / found[count]:.2f}" for count in tokens)])
        text += ("\n" if text else "") + markdown([f"{shape}, tokens:", *map(str, tokens)], cells)
    return text + conditions(result["about"])


def busy(result: Result) -> str:
    tokens = list(dict.fromkeys(row["tokens"] for row in result["rows"]))
    cells = []
    for kernel in dict.fromkeys(row["kernel"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["kernel"] == kernel]
        zeros = f", {rows[0]['sparsity']}% zeros" if rows[0]["sparsity"] else ""
        name = kernel.partition(",")[0] + zeros
        cells.append([name, *(f"{1 / row['ratio']:.2f}" for row in rows)])
    return markdown(["4096x4096, tokens:", *map(str, tokens)], cells) + conditions(result["about"])


def pack(result: Result) -> str:
    header = list(result["rows"][0])
    cells = [[str(row[key]) for key in header] for row in result["rows"]]
    return markdown(header, cells) + conditions(result["about"])


def host_cost(result: Result) -> str:
    """Microseconds a call, and in brackets against nn.Linear; a layer a row, a mode a column."""
    rows, about = result["rows"], result["about"]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    cells = [
        [name, *(f"{r['us']:.1f} ({r['ratio']:.2f})" for r in rows if r["layer"] == name)]
        for name in dict.fromkeys(row["layer"] for row in rows)
    ]
    if "gpu" in about:
        return markdown(["µs a call", *modes], cells) + gpu_conditions(about)
    return markdown(["µs a call", *modes], cells) + conditions(about)
