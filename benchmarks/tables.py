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
import re
import sys
from collections.abc import Callable
from pathlib import Path

import _attention_tables
import _behind
import _counters
import _cpu_tables
import _cusparselt
import _dense_tables
import _nm_goals
import _nm_tables
import _quality_tables
import _results
import _serve_tables
import _spmm_goals
import _spmm_tables
import _steps
import _values_goals
import _whole_tables
import auto
import choices
import sparse_24.tables
import tiled_bitmap.tables
import tiled_csl.tables
from _markdown import Result, gpu_conditions, markdown
from known_quality import MODELS

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- table: (\w+) (\S+) -->\n).*?(<!-- end of table -->)", re.S)


def choice(result: Result, full: bool = False) -> str:
    """What each kind of zeros gains and costs, and what to do about it: all columns or README's."""
    every = choices.heads()
    left_out = () if full else ("H200, back to back", "H100")
    shown = [head for head in every[1:-1] if head not in left_out]
    columns = [every.index(head) for head in (every[0], every[-1], *shown)]
    lines = [every, *choices.choices()]
    lines = [[line[at] for at in columns] for line in lines]
    lines.insert(1, ["---", "---", *["---:"] * (len(columns) - 2)])
    h200 = _results.read(choices.FAR) if choices.FAR.exists() else result
    gpus = f"{result['about']['gpu']} ({h200['about']['date'][:10]})"
    if full:
        h100 = _results.read(_results.FOLDER / choices.GPUS[1] / "nm.csv")
        gpus += f" and H100 ({h100['about']['date'][:10]})"
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines) + (
        f"\nTime of dense 16-bit weights / time, of linear layers. GPU: {gpus}, 1 to 16 tokens, "
        "layers of more than 100 million weights. CPU: AMD EPYC with AVX-512, two threads, "
        f"4096x4096. Perplexity: {' and '.join(MODELS)}, the best method of each.\n"
    )


def headline(result: Result) -> str:
    """The claim of README: what one client of vLLM gets, in one sentence; and what many get."""
    about, runs = result["about"], result["about"]["runs"]
    speed = {
        (row["weights"], row["clients"]): row["tokens_per_gpu_s"]
        for row in result["rows"]
        if row["traffic"] == "decoding"
    }
    ours, fp8 = next(name for name in runs if name.startswith("2of4-fp8_e4m3")), "fp8"
    share = runs[ours]["gpu_bytes"] / runs[fp8]["gpu_bytes"]
    more = {clients: speed[ours, clients] / speed[fp8, clients] for clients in (16, 64)}
    return (
        f"Llama 3 8B's shapes in vLLM, one client on one {about['gpu'].split()[1]}: "
        f"**{speed[ours, 1]:.0f} tokens a second with 2:4 zeros and fp8 values**, "
        f"{speed[fp8, 1]:.0f} with dense fp8; for 16 clients {more[16]:.1f} times fp8's, for 64 "
        f"{more[64]:.1f}. Weights take {share:.0%} of fp8's bytes.\n"
    )


def supported(result: Result) -> str:
    """What is tested, what should work and is not, and what does not work."""
    columns = ("what", "yes", "untested", "no")
    lines = [("", *columns[1:]), ["---"] * len(columns)]
    lines += [[str(row.get(name, "")) for name in columns] for row in result["rows"]]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


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


def generate(result: Result) -> str:
    """Tokens a second of transformers' generate, a way to hold the weights a row."""
    cells = [
        [row["method"], row.get("zeros", ""), f"{row['tokens_s']:.1f}", f"{row['ratio']:.2f}"]
        for row in result["rows"]
    ]
    header = ["", "zeros", "tokens/s", "dense time / time"]
    return markdown(header, cells) + gpu_conditions(result["about"])


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
    "linear_bf16": lambda result: _cpu_tables.linear(
        result, "dense", (1, 2, 4, 8, 16, 32, 128, 1024)
    ),
    "linear_fp32": lambda result: _cpu_tables.linear(
        result, "dense fp32", (1, 2, 4, 8, 16, 32, 128, 1024)
    ),
    "linear_avx2": lambda result: _cpu_tables.linear(result, "dense fp32", (1, 2, 4, 8, 32)),
    "auto": auto.table,
    "busy": _cpu_tables.busy,
    "choices": choice,
    "choices_full": lambda result: choice(result, full=True),
    "headline": headline,
    "supported": supported,
    "cpu_values": _cpu_tables.cpu_values,
    "pack": _cpu_tables.pack,
    "recovery": _quality_tables.recovery,
    "recovery_gpu": _quality_tables.recovery_gpu,
    "spmm_opt": lambda result: _spmm_tables.ratios(result, _spmm_tables.OPT),
    "spmm_llama": lambda result: _spmm_tables.ratios(result, _spmm_tables.LLAMA),
    "spmm_decoding": lambda result: _spmm_tables.goals(result, _spmm_goals.DECODING, "decoding"),
    "spmm_prompts": lambda result: _spmm_tables.goals(result, _spmm_goals.PROMPTS, "prompts"),
    "spmm_by_turns": _spmm_tables.by_turns,
    "nm": _nm_tables.nm,
    "behind": _behind.behind,
    "behind_gains": _behind.gains,
    "nm_fp32": _nm_tables.nm_fp32,
    "nm_steps": _nm_tables.nm_steps,
    "codes_24": sparse_24.tables.codes,
    "begins_24": sparse_24.tables.begins,
    "rings_24": sparse_24.tables.rings,
    "beyond_24": sparse_24.tables.beyond,
    "steps_by_kind": _steps.steps_by_kind,
    "steps_by_layer": _steps.steps_by_layer,
    "bitmap_launches": tiled_bitmap.tables.launch_times,
    "bitmap_launch_speeds": tiled_bitmap.tables.launch_speeds,
    "bitmap_codes": tiled_bitmap.tables.speeds,
    "bitmap_codes_times": tiled_bitmap.tables.times,
    "bitmap_prompts": tiled_bitmap.tables.prompts,
    "nm_shapes": _nm_tables.nm_shapes,
    "nm_goals": _nm_goals.goals,
    "nm_fixed": _nm_goals.fixed,
    "values_goals": _values_goals.goals,
    "counters": _counters.counters,
    "bitmap_counters": lambda result: _counters.counters(result, "tiled_bitmap"),
    "cusparselt": _cusparselt.gains,
    "spmm_shares": tiled_csl.tables.shares,
    "spmm_goals": tiled_csl.tables.missed,
    "spmm_cycles": tiled_csl.tables.cycles,
    "gpu_pack": gpu_pack,
    "host_cost": _cpu_tables.host_cost,
    "generate": generate,
    "attention": _attention_tables.paged,
    "copies": _dense_tables.copies,
    "gemm": _dense_tables.gemm,
    "inflections": _dense_tables.inflections,
    "sparse_until": _dense_tables.sparse_until,
    "serve": _serve_tables.offline,
    "serve_first": _serve_tables.first_tokens,
    "serve_traffic": _serve_tables.traffic,
    "models": models,
    "patterns": _quality_tables.patterns,
    "quality": _quality_tables.quality,
    "quality_values": _quality_tables.quality_values,
    "tasks": _quality_tables.tasks,
    "embeddings": _quality_tables.embeddings,
    "user": _quality_tables.user,
    "estimate_errors": errors,
    "step": _whole_tables.step,
    "experts": _whole_tables.experts,
    "heads": _whole_tables.heads,
    "lossless": _whole_tables.lossless,
    "bitmap_codes_kernels": _whole_tables.codes,
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
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
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
