# SPDX-License-Identifier: Apache-2.0
"""Runs Python with one set of CPU kernels or another: the choice is made once a process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

KERNEL_TESTS = Path(__file__).parent / "kernels"
VARIABLE = "FLASHSPARSE_CPU_CAPABILITY"


def run_python(*arguments: str, capability: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: capability, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, capture_output=True, text=True, timeout=300, cwd=KERNEL_TESTS,
    )  # fmt: skip


def print_capability(capability: str) -> subprocess.CompletedProcess[str]:
    code = "from flashsparse_plugin.ops import ops; print(ops.cpu_capability())"
    return run_python("-c", code, capability=capability)


@functools.cache
def supported_capabilities() -> list[str]:
    error = print_capability("none").stderr
    return error.split("It can run: ")[1].split(". Unset")[0].split(", ")
