# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of sparse_24's wgmma kernel, held to what an H200 measured."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

import _results
import pytest
from emulated_sparse_24 import VALUES
from emulation import KERNELS

# Not its numbers in brackets: shapes were counted otherwise when that was measured.
LAUNCH = re.compile(r"\d+ rows x \d+ tokens, \d+ clusters of \dx\d")
KINDS = {  # type of values, columns of a group, bytes of an element of x
    "2:4": ("native", 0, 2),
    "2:4, fp8_e4m3": ("fp8_e4m3", 0, 2),
    "2:4, int4 by 128": ("int4", 128, 2),
    "2:4, fp8_e4m3 x the same": ("fp8_e4m3", 0, 1),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """Tells plans: sparse_24_wgmma_plan_driver.cpp."""
    found = tmp_path_factory.mktemp("plan") / "plan"
    sources = [
        Path(__file__).with_name("sparse_24_wgmma_plan_driver.cpp"),
        KERNELS / "cuda" / "sparse_24" / "wgmma_plan.cpp",
    ]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]
    command += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*command, *map(str, sources), "-o", str(found)], check=True)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_planned_launches_are_nearly_the_fastest(program, kind):
    """After a change of the plan, measure: benchmarks/gpu/steps.py."""
    values, group, x_bytes = KINDS[kind]
    measured: dict[str, dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "steps.csv")["rows"]:
        if row["zeros"] == kind and (launch := LAUNCH.search(row["launch"])):
            rows, cols = row["shape"].split("x")
            product = f"{rows} {cols} {row['tokens']} {VALUES.index(values)} {group} {x_bytes}"
            measured[product][launch[0]] = row["us"]
    asked = "".join(f"{product}\n" for product in measured)
    ran = subprocess.run([program], input=asked, text=True, check=True, capture_output=True)
    slower = [
        times[plan] / min(times.values())
        for times, plan in zip(measured.values(), ran.stdout.splitlines(), strict=True)
        if plan in times
    ]
    assert len(slower) > len(measured) / 5
    assert statistics.geometric_mean(slower) <= 1.02 and max(slower) <= 1.1
