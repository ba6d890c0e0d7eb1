# SPDX-License-Identifier: Apache-2.0
"""The programs here under NVIDIA's tools: compute-sanitizer and Nsight Compute (ncu)."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _device import Budget

SANITIZERS = ("memcheck", "racecheck")
FAILED = 86  # exit code of compute-sanitizer if it found something
MARK = "spin_kernel"  # torch.cuda._sleep's

# Of ncu: those that METRICS picks from. All of its sections would replay a kernel twice as often.
SECTIONS = (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "ComputeWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",
    "InstructionStats",
    "LaunchStats",
    "Occupancy",
)

# The metrics of ncu that tell which resource binds the kernel.
METRICS = re.compile(
    r"""gpu__time_duration\.sum | sm__cycles_elapsed\.max
    | launch__(grid_size|block_size|cluster_size|registers_per_thread|shared_mem_per_block)
    | dram__bytes(_read|_write)?\.sum | dram__throughput\..*pct.*
    | lts__throughput\..*pct.* | lts__t_(bytes|sectors_op_read)\.sum
    | lts__t_sector_hit_rate\.pct | l1tex__data_pipe_lsu_wavefronts(_mem_shared.*)?\..*
    | l1tex__data_bank_conflicts_pipe_lsu_mem_shared.*
    | smsp__inst_executed(_op_shared_..)?\.sum
    | (smsp|sm)__(issue_active|inst_issued|inst_executed)\..*pct.*
    | sm__inst_executed_pipe_.*pct.* | sm__pipe_.*pct.* | sm__warps_active\..*pct.*
    | sm__maximum_warps_per_active_cycle_pct
    | smsp__average_warps?_(issue|latency_issue)_stalled_.*_per_issue_active\.ratio
    | smsp__average_warp_latency_issue_stalled_.*\.ratio""",
    re.X,
)
# What the average or the sum says, and of pipes the share of all cycles.
REPEATED = re.compile(
    r"\.(min|max)(\.|$)|\.sum\.pct|^sm__(inst_executed_)?pipe_.*_sustained_active$"
)
ADDED = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_pipe_lsu_wavefronts.sum",
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "dram__bytes_read.sum",
)
TENSOR = (
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active"
    ".avg.pct_of_peak_sustained_elapsed"
)


def _find(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")


def _run(
    command: Sequence[str], log: Path, seconds: float, environment: dict[str, str] | None = None
) -> int | None:
    """Runs a command with all output to the log; returns its exit code, None if time was over."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
        try:
            return process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children hold the card, too
            process.wait()


def sanitize(out: Path, budget: Budget, program: Path, *options: str) -> bool:
    """Runs a few small checks of a program under compute-sanitizer and prints what it found.

    Args:
        out: Where logs go.
        budget: The time that all tools share.
        program: What to run.
        options: More options of the program.

    Returns:
        Whether each tool finished and found nothing.
    """
    sanitizer = _find("compute-sanitizer")
    if sanitizer is None:
        print("sanitize: compute-sanitizer was not found")
        return False
    # Without torch's cache every tensor is its own allocation, so an access beyond it is detected.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    good = True
    for index, tool in enumerate(SANITIZERS):
        start, log = time.monotonic(), out / f"sanitize-{tool}.log"
        command = [sanitizer, "--tool", tool, "--error-exitcode", str(FAILED)]
        command += [sys.executable, str(program), "--check", "--small", "--out", str(out / "small")]
        command += options
        code = _run(command, log, budget.left / (len(SANITIZERS) - index), environment)
        text = log.read_text(errors="replace")
        summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY:.*)", text)
        checks = re.findall(r"^check: (\d+ checks.*)", text, re.M)
        passed = code == 0 and bool(summary) and bool(checks)
        good &= passed
        state = "passed" if passed else "out of time" if code is None else f"FAILED ({code})"
        print(f"sanitize: {tool} {state} in {time.monotonic() - start:.0f} s", *summary, *checks)
        if not passed:
            print(*text.splitlines()[-15:], sep="\n")
    return good


def profile(
    program: Path, points: Sequence[dict[str, Any]], out: Path, budget: Budget, *options: str
) -> list[dict[str, Any]]:
    """Profiles one call of a few points with ncu, all in one process: starting it takes longest.

    Args:
        program: What makes the calls by `profiled`, with --one and the values of the points as
            JSON. It begins no call when its --minutes are over.
        points: What to call, by name, in the order in which --one takes the values.
        out: Where ncu's own CSV goes.
        budget: The time for all of them.
        options: More options of the program.

    Returns:
        The rows of `raw_metrics`, with what is in the point.
    """
    ncu = _find("ncu")
    if ncu is None:
        print("profile: ncu was not found")
        return []
    name = "-".join(["ncu", program.stem, *(re.sub(r"\W+", "_", each) for each in options)])
    table, log = out / f"{name}.csv", out / f"{name}.log"
    command = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--page", "raw"]
    command += ["--csv", "--log-file", str(table)]
    command += [word for section in SECTIONS for word in ("--section", section)]
    asked = json.dumps([[*point.values()] for point in points])
    call = [sys.executable, str(program), "--one", asked, *options]
    found: list[list[dict[str, Any]]] = []
    code = None
    # A metric that this ncu or card lacks must not prevent all others.
    for added in (["--metrics", ",".join(ADDED)], []):
        if not found and budget.left > 0:
            minutes = ["--minutes", f"{0.8 * budget.left / 60:.2f}"]
            code = _run([*command, *added, *call, *minutes], log, budget.left)
            text = table.read_text() if code == 0 and table.exists() else ""
            found = by_call(raw_metrics(text))
    print(
        f"profile: {len(found)} of {len(points)} points" + ("" if found else f", FAILED ({code})")
    )
    if not found:
        print(*log.read_text(errors="replace").splitlines()[-10:], sep="\n")
    return [point | row for point, rows in zip(points, found, strict=False) for row in rows]


def profiled(call: Callable[[], object]) -> None:
    """Makes one call for ncu to profile, warmed up, behind a kernel that shows where it begins."""
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda._sleep(1)
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def by_call(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of ncu, divided at the kernels that `profiled` marks calls by."""
    calls: list[list[dict[str, Any]]] = []
    before = ""
    for row in rows:
        kernel = row["kernel"]
        if MARK in kernel and MARK not in before:
            calls.append([])
        elif calls and MARK not in kernel:
            calls[-1].append(row)
        before = kernel
    return calls


def raw_metrics(text: str) -> list[dict[str, Any]]:
    """Rows of kernel, metric, unit, value from the CSV of `ncu --page raw`.

    Its header is preceded by messages and followed by a row of units, then one row per launch.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = list(csv.reader(lines[start:]))
    if len(table) < 3:
        return []
    header, units, *launches = table
    return [
        {"kernel": launch[header.index("Kernel Name")].split("(")[0], "metric": name}
        | {"unit": unit, "value": value.replace(",", "")}
        for launch in launches
        for name, unit, value in zip(header, units, launch, strict=True)
        if METRICS.fullmatch(name) and not REPEATED.search(name)
    ]


def profile_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line per launch with the most important figures."""
    launches: dict[str, dict[str, str]] = {}
    for row in rows:
        point = [str(each) for name, each in row.items() if name not in ("metric", "unit", "value")]
        own = launches.setdefault(" ".join(point), {})
        own[row["metric"]] = f"{row['value']} {row['unit']}".strip()
    lines = []
    for launch, metrics in launches.items():
        stalls = {
            re.sub(r".*stalled_|_per_issue_active\.ratio", "", name): _number(value)
            for name, value in metrics.items()
            if "_stalled_" in name and name.endswith("_per_issue_active.ratio")
        }
        worst = sorted(stalls.items(), key=lambda item: -item[1])[:4]

        def get(name: str, metrics: dict[str, str] = metrics) -> str:
            return metrics.get(name, "?")

        def wavefronts(op: str, metrics: dict[str, str] = metrics) -> str:
            names = (
                f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum",
                f"smsp__inst_executed_op_shared_{op}.sum",
            )
            total, requests = (_number(metrics.get(name, "")) for name in names)
            return f"{total / requests:.2f}" if requests else "none"

        lines.append(
            {
                "launch": launch,
                "time": get("gpu__time_duration.sum"),
                "dram": get("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
                "L2": get("lts__throughput.avg.pct_of_peak_sustained_elapsed"),
                "tensor cores": get(TENSOR),
                "issue": get("smsp__issue_active.avg.pct_of_peak_sustained_active"),
                "shared data stage": get(
                    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
                ),
                "shared loads": get("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"),
                "shared stores": get("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"),
                "wavefronts a store": wavefronts("st"),
                "warps": get("sm__warps_active.avg.pct_of_peak_sustained_active"),
                "stalls": ", ".join(f"{name} {value:.1f}" for name, value in worst),
            }
        )
    return lines


def _number(text: str) -> float:
    """The number at the start of a metric's text; NaN if there is none."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return math.nan
