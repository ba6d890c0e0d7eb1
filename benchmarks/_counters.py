# SPDX-License-Identifier: Apache-2.0
"""What Nsight Compute counted of single launches, in a table."""

from __future__ import annotations

import re

from _markdown import Result, gpu_conditions, markdown

PEAK = "avg.pct_of_peak_sustained_elapsed"
SHARES = {
    "L2": f"lts__throughput.{PEAK}",
    "shared memory": f"l1tex__data_pipe_lsu_wavefronts.{PEAK}",
    "tensor cores": "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active."
    + PEAK,
    "FMA": f"sm__pipe_fma_cycles_active.{PEAK}",
    "issue": f"sm__issue_active.{PEAK}",
}
"""Shares of what a resource can do, in percent, by its name."""
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
NO_STALLS = ("selected", "not_selected")
SHOWN, LEAST = 2, 0.3  # stalls of a launch, and how many warps have to stand in one


def counters(result: Result, format: str | None = None) -> str:
    """Launches down; time, bandwidth, shares of peaks and the most frequent stalls across.

    Of one format, where the rows are of several.
    """
    launches: dict[tuple[str, ...], dict[str, float]] = {}
    for row in result["rows"]:
        if row.get("format") != format:
            continue
        kernel = re.sub(r"^void |<.*", "", row["kernel"])
        zeros = f"{row['sparsity']}% zeros" if format else row["pattern"].replace("x", ", L=")
        key = f"{row['shape']}, {zeros}", str(row["tokens"]), kernel
        launches.setdefault(key, {})[row["metric"]] = row["value"]
    cells = []
    for (layer, tokens, kernel), own in launches.items():
        ns = own["gpu__time_duration.sum"]
        line = [layer, tokens, f"`{kernel}`", f"{ns / 1e3:.1f}"]
        line.append(f"{own['dram__bytes_read.sum'] / ns / 1e3:.2f}")
        line += [f"{own[metric]:.0f}" for metric in SHARES.values()]
        cells.append([*line, _stalls(own)])
    header = ["layer", "tokens", "kernel", "µs", "TB/s", *(f"{name}, %" for name in SHARES)]
    return markdown([*header, "warps wait for"], cells) + gpu_conditions(result["about"])


def _stalls(own: dict[str, float]) -> str:
    """What most warps wait for, and how many of them for each instruction that is issued."""
    found = {
        match[1]: value
        for name, value in own.items()
        if (match := STALL.fullmatch(name)) and match[1] not in NO_STALLS and value >= LEAST
    }
    worst = sorted(found, key=lambda name: -found[name])[:SHOWN]
    return ", ".join(f"{name} {found[name]:.1f}" for name in worst)
