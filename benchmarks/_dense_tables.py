# SPDX-License-Identifier: Apache-2.0
"""Tables of dense layers and of which implementation multiplies."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from _markdown import Result, gpu_conditions, markdown


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
    """Tokens up to which the sparse kernels are faster than unpacking, by format and zeros: the
    fewest and the most of any layer, and the median."""
    found: defaultdict[str, defaultdict[int, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    for entry in result["entries"]:
        if "format" in entry and not entry.get("options"):  # zeros anywhere
            zeros = round(100 * (1 - entry["density"]))
            own = [each for each in entry["ranges"] if each["implementation"] != "library"]
            until = (own[-1]["max_tokens"] or math.inf) if own else 0
            found[entry["format"]][zeros].append(until)

    def cell(layers: list[float]) -> str:
        if not layers:
            return ""
        three = min(layers), statistics.median_low(layers), max(layers)
        return " / ".join("all" if each == math.inf else f"{each}" for each in three)

    every = sorted({zeros for by_zeros in found.values() for zeros in by_zeros})
    cells = [
        [f"`{name}`", *(cell(by_zeros[zeros]) for zeros in every)]
        for name, by_zeros in found.items()
    ]
    return markdown(["zeros:", *(f"{each}%" for each in every)], cells) + origin(result)
