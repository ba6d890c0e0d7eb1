# SPDX-License-Identifier: Apache-2.0
"""The documents' tables of whole models in vLLM."""

from __future__ import annotations

from _markdown import Result, markdown

# What serve.py calls its methods; any other is a format's name.
COMPARED = {
    "none": "dense",
    "fp8": "fp8",
    "2of4": "2:4",
    "8of32": "8:32, L=32",
    "2of4-fp8_e4m3": "2:4 fp8",
    "2of4-int4": "2:4 int4",
    "8of32-int8": "8:32 int8",
    "default": "vLLM's attention",
    "unified_max": "ours",
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
    """Streaming clients of a real server: traffic and clients down; dense / it in brackets."""
    about, rows = result["about"], result["rows"]
    several = any(run["gpus"] > 1 for run in about["runs"].values())
    names = {
        name: COMPARED.get(name, name.removesuffix("-on-1"))
        + (f" on {run['gpus']}" if several else "")
        for name, run in about["runs"].items()
    }
    one, *others = names
    figures = {"first_token_ms": "first token, ms", "ms_per_token": "ms a token"}
    figures |= {"tokens_per_gpu_s": "tokens/s a GPU"}
    points = {(row["traffic"], row["clients"], row["weights"]): row for row in rows}
    cells = []
    for kind, clients in dict.fromkeys((row["traffic"], row["clients"]) for row in rows):
        line, base = [f"{kind}, {clients}"], points.get((kind, clients, one))
        for figure in figures:
            decimals = ",.0f" if figure == "tokens_per_gpu_s" else ",.1f"
            line.append(format(base[figure], decimals) if base else "")
            for other in others:
                row = points.get((kind, clients, other))
                text = format(row[figure], decimals) if row else ""
                if row and base:
                    ratio = row[figure] / base[figure]
                    text += f" ({ratio if figure == 'tokens_per_gpu_s' else 1 / ratio:.2f})"
                line.append(text)
        cells.append(line)
    header = ["traffic, clients"]
    for title in figures.values():
        header += [f"{title}: {names[one]}", *(names[other] for other in others)]
    machine = about.get("gpu", about["cpu"])
    text = f"\n{machine}, vllm {about['vllm']}, torch {about['torch']}, {about['date'][:10]}.\n"
    lengths = {row["traffic"]: (row["tokens_in"], row["tokens_out"]) for row in rows}
    shown = ", ".join(f"{name} {into} in and {out} out" for name, (into, out) in lengths.items())
    sizes = [
        f"{names[name]} {run['gpu_bytes'] / 1e9:.1f} GB"
        + (
            f", {run['exchange_share']:.0%} of decoding exchanges sums"
            if "exchange_share" in run
            else ""
        )
        for name, run in about["runs"].items()
        if several and "gpu_bytes" in run
    ]
    weights = f" Weights of each GPU: {'; '.join(sizes)}." if sizes else ""
    return markdown(header, cells) + f"\nTokens: {shown}.{weights}{text}"
