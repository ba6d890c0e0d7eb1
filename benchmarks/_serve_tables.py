# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of whole models in vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from _markdown import Result, markdown

# What serve.py calls its methods; any other is a format's name.
COMPARED = {
    "none": "dense",
    "fp8": "fp8",
    "2of4": "2:4",
    "8of32": "8:32, L=32",
    "2of4-fp8_e4m3": "2:4 fp8",
    "2of4-fp8_e4m3-early": "and early",
    "2of4-fp8_e4m3-early-head": "and head int8",
    "fp8-static": "fp8, static scales",
    "2of4-int4": "2:4 int4",
    "2of4-int4-early": "2:4 int4, early",
    "2of4-int4-early-head": "2:4 int4, early, head int8",
    "2of4-int4-early-head-sampling-by-vLLM": "2:4 int4, head int8, vLLM's sampling",
    "hybrid-fp8": "2:4 + 25% dense, fp8",
    "hybrid-int4": "2:4 + 25% dense, int4",
    "2of4-e4m7": "2:4 exact",
    "2of4-fp8-fp8": "2:4 fp8 x fp8",
    "2of4-int8-experts": "2:4 int8",
    "2of4-int4-experts": "2:4 int4",
    "8of32-int8": "8:32 int8",
    "default": "vLLM's attention",
    "unified_max": "ours",
}

# Of streaming clients: the figure's title, its decimals, and whether more is better.
FIGURES = {
    "tokens_per_gpu_s": ("tokens/s a GPU", ",.0f", True),
    "ms_per_token": ("ms a token", ",.1f", False),
    "graph_ms": ("GPU, ms a token without head", ",.2f", False),
    "first_token_ms": ("first token, ms", ",.1f", False),
}


def offline(result: Result) -> str:
    """Tokens per GPU-second in vLLM of the two methods that were compared, by batch."""
    about = result["about"]
    names = {name: COMPARED.get(name, "sparse") for name in about["runs"]}
    one, *others = names.values()
    by_batch = [
        {row["batch"]: row for row in result["rows"] if row["weights"] == name} for name in names
    ]
    cells = []
    for batch in sorted(set().union(*by_batch)):
        found = [rows.get(batch) for rows in by_batch]  # a run may have ended before a batch
        first = found[0]
        speeds = [f"{first['tokens_per_gpu_s']:,.0f}" if first else ""]
        for row in found[1:]:
            speed = row["tokens_per_gpu_s"] if row else 0.0
            speeds.append(f"{speed:,.0f}" if row else "")
            speeds.append(f"{speed / first['tokens_per_gpu_s']:.2f}" if row and first else "")
        times = [f"{row['ms_per_token']:.2f}" if row else "" for row in found]
        cells.append([str(batch), *speeds, *times])
    speeds = [text for other in others for text in (other, "ratio")]
    text = markdown(["batch", f"tokens/s {one}", *speeds, f"ms a token {one}", *others], cells)
    runs = about["runs"].items()  # one may have ended before its model was loaded
    sizes = {names[run]: each["weight_bytes"] for run, each in runs if "weight_bytes" in each}
    weights = [f"{size / 1e9:.1f} GB {name}" for name, size in sizes.items()]
    if len(set(sizes.values())) == 1:
        weights = [f"{sizes[one] / 1e9:.1f} GB"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("vllm", "torch"))
    text += f"\nWeights {', '.join(weights)}. {about['gpu']}, {versions}.\n"
    for run, agreement in about["agreements"].items():
        which = f" of {names[run]}" if len(names) > 2 else ""
        same, compared = agreement["same_tokens"], agreement["compared_tokens"]
        alone = agreement["same_tokens_dense_one_by_one"]
        rounding = "is" if agreement["explained_by_rounding"] else "is NOT"
        text += (
            f"Greedy tokens{which} equal before the first difference: {same} of {compared} ({one} "
            f"against itself, batched and one by one: {alone}); what parts them {rounding} within "
            "rounding.\n"
        )
    return text


def first_tokens(result: Result) -> str:
    """Milliseconds until the first tokens of a batch, by what was compared, and dense / it."""
    names = {name: COMPARED.get(name, "sparse") for name in result["about"]["runs"]}
    one, *others = names.values()
    cells = []
    for batch in dict.fromkeys(row["batch"] for row in result["rows"]):
        own = {names[r["weights"]]: r for r in result["rows"] if r["batch"] == batch}
        if one not in own:
            continue  # its run ended before
        base = own[one]["first_token_ms"]
        line = [str(batch), f"{base:.1f}"]
        for other in others:
            it = own[other]["first_token_ms"] if other in own else None
            line += [f"{it:.1f}", f"{base / it:.2f}"] if it else ["", ""]
        cells.append(line)
    header = ["batch", f"first token, ms: {one}"]
    header += [text for other in others for text in (other, "ratio")]
    about = result["about"]
    return (
        markdown(header, cells) + f"\n{about['gpu']}, vllm {about['vllm']}, {about['date'][:10]}.\n"
    )


def traffic(result: Result) -> str:
    """Streaming clients of a real server: what was compared across, a row a figure and traffic.

    In brackets, above 1 better: the baseline's time / its own, its tokens / the baseline's; of
    weights its share of the baseline's bytes.
    """
    about, rows = result["about"], result["rows"]
    runs = about["runs"]
    several = any(run["gpus"] > 1 for run in runs.values())
    names = {
        name: COMPARED.get(name, name.removesuffix("-on-1"))
        + (f" on {run['gpus']}" if several else "")
        for name, run in runs.items()
    }
    points = {(row["traffic"], row["clients"], row["weights"]): row for row in rows}

    def line(title: str, values: Sequence[float | None], decimals: str, more: bool) -> list[str]:
        base, *_ = values
        cells = [format(value, decimals) if value else "" for value in values]
        for at, value in enumerate(values):
            if at and value and base:
                cells[at] += f" ({value / base if more else base / value:.2f})"
        return [title, *cells]

    kinds = list(dict.fromkeys(row["traffic"] for row in rows))
    asked = sorted(
        {(row["traffic"], row["clients"]) for row in rows},
        key=lambda each: (kinds.index(each[0]), each[1]),
    )
    cells = []
    for figure, (title, decimals, more) in FIGURES.items():
        for kind, clients in asked:
            found = [points.get((kind, clients, name)) for name in names]
            values = [row and row.get(figure) for row in found]
            if not any(values):
                continue  # not measured
            cells.append(line(f"{title}: {kind}, {clients}", values, decimals, more))
    sizes = [run.get("gpu_bytes", 0) / 1e9 for run in runs.values()]
    if any(sizes):
        cells.append(line(f"GB of weights{' a GPU' * several}", sizes, ".1f", True))
    lengths = {row["traffic"]: (row["tokens_in"], row["tokens_out"]) for row in rows}
    text = ", ".join(f"{name} {into} in and {out} out" for name, (into, out) in lengths.items())
    text = f"\nTokens: {text}.\n"
    for name, run in runs.items():
        if "exchange_share" in run:
            text += f"{names[name]}: {run['exchange_share']:.0%} of decoding exchanges sums.\n"
    machine = about.get("gpu", about["cpu"])
    text += f"{machine}, vllm {about['vllm']}, torch {about['torch']}, {about['date'][:10]}.\n"
    return markdown(["traffic, clients", *names.values()], cells) + text
