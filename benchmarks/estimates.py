# SPDX-License-Identifier: Apache-2.0
"""How far are the estimates of `flashsparse advise` from what was measured?

    python benchmarks/estimates.py

Compares every launch in benchmarks/results of what `advise` knows with its estimate, and writes the
mean of the factors between the two, a line a GPU and method. A test holds it to what is committed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from functools import cache
from typing import Any

import _results

from flashsparse_plugin.dataflow import advice
from flashsparse_plugin.gpu import find_gpu

MACHINES = {"H200": "nvidia-h200", "H100": "nvidia-h100-80gb-hbm3"}
FILES = ("spmm", "nm", "nm_values", "nm_prompts")
FEW = 64  # tokens
TARGET = _results.FOLDER / "estimates.csv"
PATTERN = re.compile(r"(\d+):(\d+)(?:, L=(32))?(?:, (fp8_e4m3|int8|int4)(?: by (128))?)?")

Row = dict[str, Any]


@cache
def choice(gpu: str, method: str) -> advice.Choice:
    """What `advise` estimates a method by."""
    device = find_gpu(gpu, (0, 0))
    for dense in advice.dense_choices(device):
        if dense.title == method:
            return dense
    if method.startswith("unstructured"):
        zeros, format = method.removeprefix("unstructured ").split("%, ")
        return advice.sparse_choice(device, format, {}, 16, 1 - int(zeros) / 100)
    found = PATTERN.fullmatch(method)
    assert found
    n, m, length, values, group = found.groups()
    options: Row = {"n": int(n), "m": int(m), "vector_length": int(length or 1)}
    options |= {"values": values} if values else {}
    options |= {"group": int(group)} if group else {}
    bits = {None: 16, "int4": 4}.get(values, 8)
    return advice.sparse_choice(device, "nm_vector", options, bits, int(n) / int(m))  # type: ignore[arg-type]


def measured() -> Iterator[tuple[str, str, tuple[int, int], int, float]]:
    """GPU, method, shape, tokens and seconds of each launch; dense ones once a shape."""
    for gpu, folder in MACHINES.items():
        dense: dict[tuple[str, tuple[int, int], int], list[float]] = {}
        for name in FILES:
            path = _results.FOLDER / folder / f"{name}.csv"
            for row in _results.read(path)["rows"] if path.exists() else ():
                rows, columns = map(int, row["shape"].split("x"))
                shape, tokens = (rows, columns), row["tokens"]
                for title in ("dense", "fp8", "int4"):
                    if (figure := f"{title}_us") in row:
                        dense.setdefault((title, shape, tokens), []).append(row[figure])
                scattered = f"unstructured {row.get('sparsity')}%, {row.get('format')}"
                method = row.get("pattern", scattered)
                if PATTERN.fullmatch(method) or method.startswith("unstructured"):
                    # The faster one runs.
                    taken = min(row["us"], row.get("unpacked_us", math.inf))
                    yield gpu, method, shape, tokens, taken * 1e-6
        for (title, shape, tokens), found in dense.items():
            yield gpu, title, shape, tokens, statistics.median(found) * 1e-6


def compare() -> list[Row]:
    """The mean factor between estimate and measurement, a line a GPU and method."""
    factors: dict[tuple[str, str], dict[bool, list[float]]] = {}
    for gpu, method, shape, tokens, seconds in measured():
        found = choice(gpu, method).seconds(shape, tokens) / seconds
        own = factors.setdefault((gpu, method), {True: [], False: []})
        own[tokens <= FEW].append(abs(math.log(found)))
    lines = []
    for (gpu, method), by_tokens in factors.items():
        line: Row = {"gpu": gpu, "method": method}
        for few, name in ((True, "few"), (False, "many")):
            found = by_tokens[few]
            if found:
                mean, worst = math.exp(statistics.fmean(found)), math.exp(max(found))
                line |= {f"{name}_points": len(found), f"{name}_error": round(mean - 1, 3)}
                line |= {f"{name}_worst": round(worst - 1, 2)}
        lines.append(line)
    return lines


def main() -> None:
    _results.write(TARGET, {"few": FEW}, compare())
    print(f"written to {TARGET}")


if __name__ == "__main__":
    main()
