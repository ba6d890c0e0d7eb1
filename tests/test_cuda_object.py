# SPDX-License-Identifier: Apache-2.0
"""What the compiled objects need and what they show, read from their symbol tables (binutils).

One wheel serves every Python and every torch >= 2.11 only while the objects need nothing but
PyTorch's stable ABI and the C and C++ run-time libraries.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from compiled_objects import compiled

from flashsparse_plugin.ops import STATUS

OBJECTS = ("_C_cpu", "_C_cuda")
LIBRARIES = re.compile(r"(libtorch|libstdc\+\+|libm|libgcc_s|libc|ld-linux-[a-z0-9-]+)\.so(\.\d+)?")
SYSTEM_VERSIONS = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[0-9.]+")
STABLE_ABI = re.compile(
    r"(aoti_torch|torch)_[a-z0-9_]+"
)  # its C functions; libtorch has no versions


def lines(*command: str | Path) -> list[str]:
    ran = subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    )
    return ran.stdout.splitlines()


def symbols(path: Path, which: str) -> dict[str, str]:
    """Names of dynamic symbols, versions included, and their type letter."""
    table = [line.split()[-2:] for line in lines("nm", "-D", which, path)]
    return {name: letter for letter, name in table}


@pytest.mark.parametrize("name", OBJECTS)
def test_needs_only_libtorch_and_the_system(name):
    dynamic = lines("readelf", "-d", compiled(name))
    needed = [re.search(r"\[(.*)\]", line)[1] for line in dynamic if "(NEEDED)" in line]
    assert "libtorch.so" in needed
    assert [library for library in needed if not LIBRARIES.fullmatch(library)] == []
    # torch is in the process already; a path would point into the building machine.
    assert [line for line in dynamic if "(RPATH)" in line or "(RUNPATH)" in line] == []


@pytest.mark.parametrize("name", OBJECTS)
def test_undefined_symbols_are_of_the_stable_abi(name):
    undefined = symbols(compiled(name), "--undefined-only")
    ours, foreign = set(), set()
    for symbol, letter in undefined.items():
        base, _, version = symbol.partition("@")
        if STABLE_ABI.fullmatch(base):
            ours.add(base)
        elif letter != "w" and not SYSTEM_VERSIONS.fullmatch(version):
            foreign.add(symbol)  # Python's and CUDA's symbols would be here
    assert foreign == set()
    assert "torch_library_impl" in ours
    if name == "_C_cuda":
        assert "aoti_torch_get_current_cuda_stream" in ours


@pytest.mark.parametrize("name", OBJECTS)
def test_shows_no_symbol_of_its_own(name):
    """A cudart of ours that others could bind to, or theirs that we would, ends in odd crashes."""
    shown = symbols(compiled(name), "--defined-only")
    assert [symbol for symbol in shown if re.search(r"flashsparse|cuda", symbol)] == []


def test_cuda_object_is_not_loaded_by_a_cpu_torch():
    import torch

    compiled("_C_cuda")
    status = STATUS["_C_cuda"]
    assert status.loaded == (torch.version.cuda is not None)
    assert status.loaded or "CPU build" in status.reason
