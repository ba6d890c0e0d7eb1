# SPDX-License-Identifier: Apache-2.0
"""The table of what Nsight Compute counted."""

from __future__ import annotations

from _counters import SHARES, counters

ABOUT = {"gpu": "NVIDIA H200", "torch": "2", "date": "2026-11-23T00:00"}
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def test_a_launch_is_a_line_with_its_shares_and_what_its_warps_wait_for():
    metrics = {"gpu__time_duration.sum": 2000.0, "dram__bytes_read.sum": 4e6}
    metrics |= {metric: 10.0 + i for i, metric in enumerate(SHARES.values())}
    stalls = {"wait": 1.25, "barrier": 0.2, "long_scoreboard": 7.0, "selected": 9.0, "drain": 2.0}
    metrics |= {STALLED.format(name): value for name, value in stalls.items()}
    launch = {
        "shape": "64x32",
        "pattern": "8:32x64",
        "tokens": 8,
        "kernel": "void a::b<c::D<1>, 2>",
    }
    rows = [launch | {"metric": name, "value": value} for name, value in metrics.items()]
    figures = (
        "| 8 | `a::b` | 2.0 | 2.00 | 10 | 11 | 12 | 13 | 14 | long_scoreboard 7.0, drain 2.0 |"
    )
    lines = counters({"rows": rows, "about": ABOUT}).splitlines()
    assert lines[2] == f"| 64x32, 8:32, L=64 {figures}"
    of_two = [row | {"format": name, "sparsity": 80} for name in "xy" for row in rows]
    lines = counters({"rows": of_two, "about": ABOUT}, "y").splitlines()
    assert lines[2:4] == [f"| 64x32, 80% zeros {figures}", ""]
