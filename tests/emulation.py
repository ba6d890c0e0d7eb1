# SPDX-License-Identifier: Apache-2.0
"""Compiles the drivers in kernels/emulator, which run the CUDA kernels' own source on the CPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "kernels"
SANITIZERS = {
    "plain": [],
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
SEEDS = (0, 1, 7)  # threads run in rising, falling and shuffled order
EMULATOR_EXIT_CODE = 3
RACE_EXIT_CODE = 66  # of the thread sanitizer


def compile_driver(name: str, sanitizer: str, folder: Path, include: Path | None = None) -> Path:
    """Compiles kernels/emulator/<name>.cpp; headers in `include` hide those of the repository."""
    binary = folder / f"{name}_{sanitizer}"
    paths = [f"-I{path}" for path in (include, KERNELS) if path]
    options = ["-std=c++17", "-O1", "-g", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror"]
    source = KERNELS / "emulator" / f"{name}.cpp"
    command = ["g++", *options, *SANITIZERS[sanitizer], *paths, str(source), "-o", str(binary)]
    subprocess.run(command, check=True)
    return binary


def without_each_barrier(kernel: Path, folder: Path) -> Iterator[Path]:
    """Writes the source of a kernel once for each `__syncthreads`, without that one.

    Yields:
        Folders that hide the kernel's header from `compile_driver`.
    """
    source = kernel.read_text()
    for number, barrier in enumerate(re.finditer(r"__syncthreads\(\);", source)):
        include = folder / str(number)
        mutant = include / kernel.relative_to(KERNELS)
        mutant.parent.mkdir(parents=True)
        mutant.write_text(source[: barrier.start()] + source[barrier.end() :])
        yield include
