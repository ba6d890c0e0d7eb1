# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels outside torch: under sanitizers, without AVX, and free of leaking symbols."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernel_capabilities import supported_capabilities

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
X86 = platform.machine() in ("x86_64", "AMD64")
SETS = ("avx2", "avx512")  # folders of sources for one instruction set
SOURCES = sorted(KERNELS.glob("cpu/**/*.cpp"))
BASELINE = [source for source in SOURCES if source.parent.name not in SETS]
VECTOR = [source for source in SOURCES if X86 and source.parent.name in SETS]
NOT_FUZZED = ("cpu_panels", "lossless", "nm_vector")  # folders of formats
FUZZED = [source for source in BASELINE + VECTOR if not {*source.parts}.intersection(NOT_FUZZED)]
HEADERS = [path for path in KERNELS.glob("**/*.h") if path.parent.name not in SETS]
STD_THREAD = "parallel_std_thread.cpp"
COMPILER = os.environ.get("CXX", "g++")


def compile_all(folder: Path, sources: list[Path], *flags: str) -> list[Path]:
    """Compiles each source, with the flags that its folder asks for."""

    def compile_one(source: Path) -> Path:
        target = folder / f"{'_'.join(source.parts[-3:])}.o"
        own = KERNELS / "cpu" / source.parent.name / "compile_flags.txt"
        command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}", *flags,
                   *([f"@{own}"] if own.exists() else []),
                   "-c", str(source), "-o", str(target)]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sources))


@pytest.fixture(scope="module")
def vector_objects(tmp_path_factory) -> dict[Path, Path]:
    """Of the sources for one instruction set, soon compiled."""
    folder = tmp_path_factory.mktemp("vector")
    built = compile_all(folder, VECTOR, "-O0", "-DFLASHSPARSE_X86")
    return dict(zip(VECTOR, built, strict=True))


@pytest.fixture(scope="module")
def fuzzers(tmp_path_factory, vector_objects) -> dict[str, Path]:
    """Programs by the name of their format.

    What this CPU cannot run is only linked: the sanitizers would take as long to compile it.
    """
    folder = tmp_path_factory.mktemp("fuzz")
    flags = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags += ["-DFLASHSPARSE_X86"] if X86 else []
    idle = {*SETS}.difference(supported_capabilities())
    linked = [source for source in FUZZED if source.parent.name in idle]
    run = [source for source in FUZZED if source not in linked]
    drivers = sorted(HERE.glob("fuzz_*.cpp"))
    *built, threads = compile_all(folder, [*run, *drivers, HERE / STD_THREAD], *flags)
    shared = [*built[: len(run)], threads, *(vector_objects[source] for source in linked)]
    programs = {}
    for driver, own in zip(drivers, built[len(run) :], strict=True):
        name = driver.stem.removeprefix("fuzz_")
        programs[name] = folder / driver.stem
        objects = map(str, [*shared, own])
        command = [COMPILER, *flags, *objects, "-pthread", "-o", str(programs[name])]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    return programs


@pytest.mark.slow
@pytest.mark.parametrize("capability", supported_capabilities())
@pytest.mark.parametrize("format", ["tiled_bitmap", "tiled_csl"])
def test_ten_thousand_mutations_are_refused_or_read_right(fuzzers, format, capability):
    result = subprocess.run(
        [fuzzers[format], "10000"], capture_output=True, text=True,
        env={**os.environ, "FLASHSPARSE_CPU_CAPABILITY": capability},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = re.match(r"(\w+): 10000 mutations, (\d+) still sound", result.stdout)
    assert report and report[1] == capability
    assert 1000 < int(report[2]) < 9000, "mutations should break some tensors and spare others"


def test_portable_kernels_need_no_vector_extension(tmp_path):
    text = "".join(path.read_text() for path in BASELINE + sorted(HEADERS))
    assert "immintrin.h" not in text
    flags = ["-mno-avx", "-mno-sse3"] if X86 else []
    assert compile_all(tmp_path, BASELINE, "-fsyntax-only", *flags)


def test_vector_objects_share_no_inline_function(vector_objects):
    """A copy compiled for AVX-512 must not become the program's copy of a shared function."""
    for built in vector_objects.values():
        listing = subprocess.run(
            ["nm", "-C", "--defined-only", built], capture_output=True, text=True, check=True
        ).stdout
        weak = [line for line in listing.splitlines() if line.split()[1] in "WVu"]
        weak = [line for line in weak if "DW.ref." not in line]  # of the exception runtime
        assert not weak, f"{built.name}: {weak}"
