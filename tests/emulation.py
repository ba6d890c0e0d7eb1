# SPDX-License-Identifier: Apache-2.0
"""Compiles the drivers in kernels/emulator, which run the CUDA kernels' own source on the CPU."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "kernels"
COMPILED = ROOT / "build" / "emulator"
UNUSED_DAYS = 7  # after which a compiled driver is deleted
# Most of the time goes into compiling: -Og takes two thirds of the time of -O1, and the programs
# are as fast.
SANITIZERS = {
    "plain": ["-Og"],
    "thread": ["-Og", "-fsanitize=thread"],
    # The compiler would need longer to optimise all the checks than they take as they are. A null
    # pointer is a fault anyway, there is no virtual function, and sizes are only known to -O1.
    "address": ["-O0", "-fsanitize=address,undefined", "-fno-sanitize=null,vptr,object-size",
                "-fno-sanitize-recover=all"],
}  # fmt: skip
# For parametrize.
SANITIZED = [pytest.param(name, marks=pytest.mark.slow) for name in ("thread", "address")]
EACH_BUILD = ["plain", *SANITIZED]
OPTIONS = ["-std=c++17", "-g1", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror"]
# What of the emulator is no template: compiled once a sanitizer, and not with each driver.
EMULATOR_SOURCES = [
    f"emulator/{name}.cpp" for name in ("statistics", "memory", "block", "scheduler", "collectives")
]
# What a driver needs beside its own source and the emulator: code of the host.
HOST_SOURCES = {
    "tiled_csl/linear_driver": [
        "cuda/tiled_csl/stream_k_plan.cpp",
        "cuda/tiled_csl/linear_plan.cpp",
    ],
    "nm_gather/linear_driver": ["cuda/nm_gather/linear_plan.cpp"],
    "nm_gather/packed_driver": ["cuda/nm_gather/packed_plan.cpp"],
    "nm_gather/tiles_driver": ["cuda/nm_gather/tiles_plan.cpp"],
    "nm_spmm/linear_driver": ["cuda/nm_spmm/linear_plan.cpp"],
    "exact_units/linear_driver": ["cuda/exact_units/linear_plan.cpp"],
    "exact_units/wgmma_driver": ["cuda/exact_units/wgmma_plan.cpp"],
    "hybrid_units/linear_driver": ["cuda/hybrid_units/linear_plan.cpp"],
    "hybrid_units/wgmma_driver": [
        "cuda/hybrid_units/linear_plan.cpp",
        "cuda/hybrid_units/wgmma_plan.cpp",
    ],
    "sparse_24/linear_driver": ["cuda/sparse_24/linear_plan.cpp"],
    "sparse_24/linear_codes_driver": ["cuda/sparse_24/linear_plan.cpp"],
    "sparse_24/experts_driver": ["cuda/sparse_24/experts_plan.cpp"],
    "sparse_24/experts_wgmma_driver": [
        f"cuda/sparse_24/{plan}_plan.cpp" for plan in ("experts", "experts_wgmma", "wgmma")
    ],
    "sparse_24/wgmma_driver": ["cuda/sparse_24/wgmma_plan.cpp"],
    "sparse_24/wgmma_codes_driver": ["cuda/sparse_24/wgmma_plan.cpp"],
    "tiled_bitmap/linear_driver": ["cuda/tiled_bitmap/linear_plan.cpp"],
    "tiled_bitmap/wgmma_driver": ["cuda/tiled_bitmap/wgmma_plan.cpp"],
    "dense_driver": ["cuda/dense/dense_plan.cpp"],
    "decode_driver": ["cuda/attention/unified_max_plan.cpp"],
}
SYNCTHREADS, SYNCWARP = r"__syncthreads\(\);", r"__syncwarp\(\);"
# Whose programs under the thread sanitizer can leave out a barrier: of which kernels, and what it
# looks like. One program is for what is right and for all mutants.
SWITCHED = {
    "offsets_driver": (["cuda/shared/offsets.cuh"], SYNCTHREADS),
    "nm_vector/pack_driver": (["cuda/nm_vector/pack.cuh"], SYNCTHREADS),
    "nm_vector/unpack_driver": (["cuda/nm_vector/unpack.cuh"], f"{SYNCTHREADS}|{SYNCWARP}"),
    "nm_vector/validate_driver": (["cuda/nm_vector/validate.cuh"], SYNCTHREADS),
    "tiled_bitmap/pack_driver": (["cuda/tiled_bitmap/pack.cuh"], SYNCWARP),
    "tiled_bitmap/unpack_driver": (
        ["cuda/tiled_bitmap/unpack.cuh", "cuda/tiled_bitmap/unit_copy.cuh"],
        SYNCWARP,
    ),
    "tiled_bitmap/prompt_driver": (
        ["cuda/tiled_bitmap/unpack_codes.cuh", "cuda/tiled_bitmap/unit_copy.cuh"],
        SYNCWARP,
    ),
    "tiled_csl/pack_driver": (["cuda/tiled_csl/pack.cuh"], SYNCTHREADS),
    "tiled_csl/unpack_driver": (["cuda/tiled_csl/unpack.cuh"], SYNCTHREADS),
    "tiled_csl/validate_driver": (["cuda/tiled_csl/validate.cuh"], SYNCTHREADS),
}
SEEDS = (0, 1, 7)  # threads run in rising, falling and shuffled order
EMULATOR_EXIT_CODE = 3
RACE_EXIT_CODE = 66  # of the thread sanitizer
# TSAN_OPTIONS of a mutant. That there is a race is enough: to name its lines takes longer.
UNTIL_A_RACE = "halt_on_error=1:symbolize=0"
# Shared by the headers of a program: which barrier it leaves out.
SWITCH = """#pragma once
#include <cstdlib>
inline const int without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : -1;
"""


def compile_driver(name: str, sanitizer: str, headers: dict[str, str] | None = None) -> Path:
    """Compiles kernels/emulator/<name>.cpp, or finds the program compiled before.

    Programs are kept in build/emulator, named by a hash of all that goes into them, so that test
    processes share them and later runs find them.

    Args:
        headers: The text of headers that hide those of the repository, by their path in KERNELS.
            None: those of SWITCHED under the thread sanitizer, and else none.
    """
    if headers is None and sanitizer == "thread" and name in SWITCHED:
        headers, _ = with_switched_barriers(*SWITCHED[name])
    paths = []
    if headers:
        folder = COMPILED / f"headers-{_digest(repr(sorted(headers.items())).encode())}"
        for header, text in headers.items():
            _write(folder / header, text)
        paths.append(f"-I{folder}")
    sources = [f"emulator/{name}.cpp", *HOST_SOURCES.get(name, [])]
    return _compile(
        f"{name}-{sanitizer}", [*paths, str(compile_emulator(sanitizer))], sources, sanitizer
    )


@cache
def compile_emulator(sanitizer: str) -> Path:
    """What all drivers are linked with, as one object."""
    return _compile(f"emulator-{sanitizer}.o", ["-r", "-nostdlib"], EMULATOR_SOURCES, sanitizer)


def _compile(name: str, options: list[str], sources: list[str], sanitizer: str) -> Path:
    """Compiles sources, named by their path in KERNELS, or finds what was compiled before."""
    command = ["g++", *OPTIONS, *SANITIZERS[sanitizer], *options, f"-I{KERNELS}"]
    command += [str(KERNELS / source) for source in sources]
    stem, suffix = os.path.splitext(name)
    made = COMPILED / f"{stem}-{_digest(_all_that_is_compiled(command))}{suffix}"
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".partial")
            subprocess.run([*command, "-o", str(partial)], check=True)
            partial.rename(made)
            _delete_unused()
    os.utime(made)
    return made


def _all_that_is_compiled(command: list[str]) -> bytes:
    """The compiler's version, the command, and the text of every file that it reads of ours."""
    rules = subprocess.run([*command, "-MM"], check=True, capture_output=True, text=True).stdout
    files = sorted({word for word in rules.split() if word != "\\" and not word.endswith(":")})
    texts = [Path(file).read_bytes() for file in files]
    return repr((_compiler_version(), command, list(zip(files, texts, strict=True)))).encode()


@cache
def _compiler_version() -> str:
    return subprocess.run(["g++", "-v"], check=True, capture_output=True, text=True).stderr


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.rename(path)


def _delete_unused() -> None:
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in COMPILED.rglob("*"):
        if path.is_file() and path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


def run_packed_cases(
    binary: Path, cases, timeout: float, **environment: str
) -> subprocess.CompletedProcess:
    """Feeds (words, offsets, shape, seed) cases to a driver that reads them by
    read_tiled_csl_case.

    Args:
        timeout: Seconds for all cases together.
    """
    fed = bytearray()
    for words, offsets, (rows, cols), seed in cases:
        fed += np.array([rows, cols, len(words), seed], dtype=np.int64).tobytes()
        fed += offsets.numpy().tobytes() + words.numpy().tobytes()
    return subprocess.run(
        [str(binary)], input=bytes(fed), capture_output=True, timeout=timeout,
        env=os.environ | environment,
    )  # fmt: skip


def find_nvcc() -> str | None:
    """The nvcc that the build takes, by the rule of cmake/cuda.cmake: CUDACXX or else PATH."""
    if "CUDACXX" in os.environ:
        return shutil.which(os.environ["CUDACXX"])
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def compile_cuda(source: Path, architecture: str, folder: Path, *include: Path) -> tuple[str, str]:
    """Compiles with nvcc, without a warning or a spill.

    Args:
        source: The file.
        architecture: Such as sm_90a.
        folder: Where to write.
        *include: Folders of headers that hide those of the repository.

    Returns:
        The PTX, and what nvcc said.
    """
    paths = [f"-I{each}" for each in (*include, KERNELS)]
    ran = subprocess.run(
        [find_nvcc(), "-x", "cu", "-std=c++17", f"-arch={architecture}", *paths,
         "-Werror", "all-warnings", "-Xptxas", "--warn-on-spills,-Werror", "--keep",
         "--keep-dir", str(folder), "-cubin", "-o", str(folder / "code.cubin"), str(source)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    return (folder / f"{source.stem}.ptx").read_text(), ran.stdout


def with_switched_barriers(
    kernels: Sequence[str], barrier: str = SYNCTHREADS
) -> tuple[dict[str, str], list[str]]:
    """Writes kernels such that a program can leave out one barrier: one program for all mutants.

    It leaves out the one whose number the environment variable WITHOUT holds.

    Args:
        kernels: Headers, by their path in KERNELS.
        barrier: What a barrier looks like, a statement.

    Returns:
        The headers for `compile_driver`, and where in the kernels each barrier stands.
    """
    headers, places = {"without.h": SWITCH}, []
    for kernel in kernels:
        source = (KERNELS / kernel).read_text()

        def switched(found: re.Match, kernel: str = kernel, source: str = source) -> str:
            places.append(f"{kernel}:{source.count(chr(10), 0, found.start()) + 1}")
            return f"{{ if (without != {len(places) - 1}) {found[0]} }}"

        text = re.sub(barrier, switched, source)
        assert "#pragma once\n" in text, kernel
        headers[kernel] = text.replace("#pragma once\n", '#pragma once\n#include "without.h"\n', 1)
    return headers, places


def is_caught(ran: subprocess.CompletedProcess, judge: Callable[[bytes], None]) -> bool:
    """Whether a mutant is: by the thread sanitizer, by the emulator itself, or by a wrong result.

    Args:
        ran: Under TSAN_OPTIONS=UNTIL_A_RACE.
        judge: Asserts that what the program wrote is right.
    """
    if ran.returncode != 0:
        assert ran.returncode in (EMULATOR_EXIT_CODE, RACE_EXIT_CODE), ran.stderr
        return True
    try:
        judge(ran.stdout)
    except AssertionError:
        return True
    return False


def run_without_each_barrier(
    name: str, run: Callable[..., subprocess.CompletedProcess]
) -> dict[str, subprocess.CompletedProcess]:
    """Runs a driver of SWITCHED under the thread sanitizer without each of its barriers.

    Args:
        name: The driver.
        run: Runs the program that it is given, with its keywords in the environment.

    Returns:
        What it returned, by where in the kernels the barrier stands.
    """
    _, places = with_switched_barriers(*SWITCHED[name])
    binary = compile_driver(name, "thread")
    return {place: run(binary, WITHOUT=str(number)) for number, place in enumerate(places)}


def with_few_shapes(plan: str, *kept: Sequence[int]) -> dict[str, str]:
    """A plan's header with fewer shapes, for a driver that is soon compiled.

    Numbers of shapes stay: those that are not kept become copies of one before them that is.

    Args:
        plan: The header, by its path in KERNELS.
        *kept: Numbers of the shapes to keep, of each of its lists; the first is among them.
    """
    lists = iter(kept)

    def few(found: re.Match) -> str:
        own, lines = next(lists), found[2].split("\\\n")[1:]
        assert 0 in own and max(own) < len(lines)
        taken = [max(each for each in own if each <= number) for number in range(len(lines))]
        return found[1] + "".join(f" \\\n{lines[number].rstrip()}" for number in taken)

    text, found = re.subn(
        r"(#define FS_\w+\(X\))((?: *\\\n +X\([^()]*\))+)", few, (KERNELS / plan).read_text()
    )
    assert found == len(kept)
    return {plan: text}


def covering(shapes: Sequence[tuple]) -> list[int]:
    """Numbers of a few shapes among which every number of every shape occurs in its place."""
    left = {part for shape in shapes for part in enumerate(shape)}
    kept = {0}
    while left:
        found = max(range(len(shapes)), key=lambda each: len(left & {*enumerate(shapes[each])}))
        kept.add(found)
        left -= {*enumerate(shapes[found])}
    return sorted(kept)
