# SPDX-License-Identifier: Apache-2.0
"""Compiles the drivers in kernels/emulator, which run the CUDA kernels' own source on the CPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np

KERNELS = Path(__file__).parents[1] / "kernels"
SANITIZERS = {
    "plain": ["-O1"],
    "thread": ["-O1", "-fsanitize=thread"],
    # For mutants: compiled in half the time, and its messages name no lines.
    "thread quickly": ["-O0", "-g0", "-fsanitize=thread"],
    # The compiler would need longer to optimise all the checks than they take as they are.
    "address": ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
# What a driver needs beside its own source: code of the host.
HOST_SOURCES = {
    "linear_driver": ["cuda/linear_plan.cpp", "cuda/tiled_csl/linear_plan.cpp"],
    "dense_driver": ["cuda/dense_plan.cpp"],
    "decode_driver": ["cuda/unified_max_plan.cpp"],
}
SEEDS = (0, 1, 7)  # threads run in rising, falling and shuffled order
EMULATOR_EXIT_CODE = 3
RACE_EXIT_CODE = 66  # of the thread sanitizer


def compile_driver(name: str, sanitizer: str, folder: Path, include: Path | None = None) -> Path:
    """Compiles kernels/emulator/<name>.cpp; headers in `include` hide those of the repository."""
    binary = folder / f"{name}_{sanitizer}"
    paths = [f"-I{path}" for path in (include, KERNELS) if path]
    options = ["-std=c++17", "-g", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror"]
    sources = [f"emulator/{name}.cpp", *HOST_SOURCES.get(name, [])]
    command = ["g++", *options, *SANITIZERS[sanitizer], *paths]
    command += [*(str(KERNELS / source) for source in sources), "-o", str(binary)]
    subprocess.run(command, check=True)
    return binary


def run_packed_cases(binary: Path, cases, timeout: float) -> subprocess.CompletedProcess:
    """Feeds (words, offsets, shape, seed) cases to a driver that reads them by read_tiled_csl_case.

    Args:
        timeout: Seconds for all cases together.
    """
    fed = bytearray()
    for words, offsets, (rows, cols), seed in cases:
        fed += np.array([rows, cols, len(words), seed], dtype=np.int64).tobytes()
        fed += offsets.numpy().tobytes() + words.numpy().tobytes()
    return subprocess.run([str(binary)], input=bytes(fed), capture_output=True, timeout=timeout)


def find_nvcc() -> str | None:
    there = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(there) if there.exists() else None)


def compile_cuda(source: Path, architecture: str, folder: Path) -> tuple[str, str]:
    """Compiles with nvcc, without a warning or a spill.

    Returns:
        The PTX, and what nvcc said.
    """
    ran = subprocess.run(
        [find_nvcc(), "-x", "cu", "-std=c++17", f"-arch={architecture}", f"-I{KERNELS}",
         "-Werror", "all-warnings", "-Xptxas", "--warn-on-spills,-Werror", "--keep",
         "--keep-dir", str(folder), "-cubin", "-o", str(folder / "code.cubin"), str(source)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    return (folder / f"{source.stem}.ptx").read_text(), ran.stdout


def without_each_barrier(
    kernel: Path, folder: Path, barrier: str = r"__syncthreads\(\);"
) -> Iterator[Path]:
    """Writes the source of a kernel once for each `barrier`, without that one.

    Yields:
        Folders that hide the kernel's header from `compile_driver`.
    """
    source = kernel.read_text()
    for found in re.finditer(barrier, source):
        line = source.count("\n", 0, found.start()) + 1
        include = folder / f"{kernel.name}:{line}"
        mutant = include / kernel.relative_to(KERNELS)
        mutant.parent.mkdir(parents=True)
        mutant.write_text(source[: found.start()] + ";" + source[found.end() :])
        yield include


def run_without_each_barrier(
    kernel: Path, name: str, folder: Path, run: Callable[[Path], subprocess.CompletedProcess]
) -> list[subprocess.CompletedProcess]:
    """Runs a driver under the thread sanitizer without each `__syncthreads` of a kernel in turn."""

    def compile_and_run(include: Path) -> subprocess.CompletedProcess:
        return run(compile_driver(name, "thread", include, include=include))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_and_run, without_each_barrier(kernel, folder)))


def with_switched_barriers(kernel: Path, include: Path, barrier: str) -> int:
    """Writes the source of a kernel such that a program can leave out one `barrier`.

    The number that the environment variable WITHOUT holds: one program stands for all mutants that
    `without_each_barrier` would write.

    Args:
        kernel: A header in KERNELS.
        include: A folder for `compile_driver`, which hides the header by the one written.
        barrier: What a barrier looks like.

    Returns:
        How many there are.
    """
    numbers = count()
    source = re.sub(
        barrier,
        lambda found: f"{{ if (without != {next(numbers)}) {found[0]} }}",
        kernel.read_text(),
    )
    switch = 'inline const int without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : -1;'
    mutant = include / kernel.relative_to(KERNELS)
    mutant.parent.mkdir(parents=True, exist_ok=True)
    line = source.index("#pragma once") + len("#pragma once")
    mutant.write_text(f"{source[:line]} // with barriers to switch off\n#include <cstdlib>\n"
                      f"{switch}{source[line:]}")  # fmt: skip
    return next(numbers)
