# SPDX-License-Identifier: Apache-2.0
"""Every instruction set that this CPU has is forced, is the one in use, and passes the tests."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VARIABLE = "FLASHSPARSE_CPU_CAPABILITY"


def run_python(*arguments: str, capability: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: capability, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, capture_output=True, text=True, timeout=300, cwd=HERE,
    )  # fmt: skip


def print_capability(capability: str) -> subprocess.CompletedProcess[str]:
    code = "from flashsparse_plugin.ops import ops; print(ops.cpu_capability())"
    return run_python("-c", code, capability=capability)


@functools.cache
def supported_capabilities() -> list[str]:
    error = print_capability("none").stderr
    return error.split("It can run: ")[1].split(". Unset")[0].split(", ")


def test_an_unknown_capability_is_an_error_that_lists_the_others():
    result = print_capability("avx1024")
    assert result.returncode == 1
    assert f"{VARIABLE}=avx1024 names no kernels that this CPU can run" in result.stderr
    assert supported_capabilities()[-1] == "portable"


@pytest.mark.parametrize("capability", ["avx512", "avx2", "portable"])
def test_forced_capability_is_used_and_passes(capability):
    result = print_capability(capability)
    if capability not in supported_capabilities():
        assert "names no kernels that this CPU can run" in result.stderr
        return
    assert result.stdout.strip() == capability
    result = run_python(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_pack.py", "test_linear.py",
        capability=capability,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_widest_capability_is_the_default():
    assert print_capability("").stdout.strip() == supported_capabilities()[0]
