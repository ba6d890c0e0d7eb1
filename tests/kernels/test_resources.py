# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels take no more of a multiprocessor than kernels/resources.csv allows them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from compiled_objects import compiled
from emulation import find_nvcc
from resources_program import resources

PLANTED = """
namespace flashsparse::toy {
template <int N, bool B>
__global__ void __launch_bounds__(128) plain(float* x) { x[threadIdx.x] += N + B; }
template <class T>
__global__ void __launch_bounds__(64) shared(T* x) {
  __shared__ T s[96];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void __launch_bounds__(32, 1) local(float* x, const int* at) {
  float s[300];
  for (int i = 0; i < 300; ++i) s[at[i]] = x[i];
  for (int i = 0; i < 300; ++i) x[i] += s[at[i] + 1];
}
__global__ void __launch_bounds__(32) empty(float*) {}
template __global__ void plain<3, true>(float*);
template __global__ void shared<float>(float*);
}
"""


@pytest.mark.slow
def test_no_kernel_got_worse(capsys):
    path = compiled("_C_cuda")
    kernels = resources.read(path)
    assert kernels
    with capsys.disabled():  # the table is for the log; pytest-xdist's workers have no stdout
        resources.show(kernels, file=sys.stderr)
    assert resources.in_local_memory(path, kernels) == []
    made_by, committed = resources.read_committed()
    assert {kernel.arch for kernel in committed} == set(resources.KEPT_ARCHS)
    if resources.ptxas_version(path) == made_by:  # of another one the figures say nothing
        worse, better = resources.compare(kernels, committed)
        print(*better, sep="\n")
        assert worse == [], f"if that is worth it: {resources.REWRITE}"


def test_sm_89_has_code_of_its_own_where_it_widens_fp8():
    """Of the others it runs that of sm_80: cmake/cuda.cmake knows the files by their names."""
    kernels = resources.kernels_of(compiled("_C_cuda"))
    if not {"sm_80", "sm_89"} <= kernels.keys():
        pytest.skip("not built for both")
    widening = {name for name in kernels["sm_80"] if re.search(r"Fp8(Values|Codes)|Type\)1", name)}
    assert len(widening) > 60
    assert widening <= kernels["sm_89"]
    assert len(kernels["sm_89"]) < len(kernels["sm_80"]) / 2


@pytest.mark.slow
def test_what_is_read_from_an_object(tmp_path, monkeypatch):
    """Kernels of known resources, one with an array that no register can hold; none is empty."""
    compiled("_C_cuda")
    (tmp_path / "planted.cu").write_text(PLANTED)
    command = [find_nvcc(), "-std=c++17", "-c", "planted.cu"]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("80", "89", "90a")]
    subprocess.run(command, cwd=tmp_path, check=True)
    monkeypatch.setattr(resources, "dynamic_shared", lambda kernel: 0)
    monkeypatch.setattr(resources, "launched_threads", lambda kernel, most: most)
    kernels = {kernel.key: kernel for kernel in resources.read(tmp_path / "planted.o")}
    names = ("toy::local", "toy::plain<3, true>", "toy::shared<float>")
    assert sorted(kernels) == sorted((name, arch) for name in names for arch in ("sm_80", "sm_90a"))
    for arch in ("sm_80", "sm_90a"):
        local, plain, shared = (kernels[name, arch] for name in names)
        assert (plain.threads, plain.static_shared, plain.LDG, plain.LDS) == (128, 0, 1, 0)
        assert (shared.threads, shared.static_shared, shared.LDS, shared.STS) == (64, 96 * 4, 1, 1)
        assert local.local >= 300 * 4 and plain.local == shared.local == 0
    told = resources.in_local_memory(tmp_path / "planted.o", list(kernels.values()))
    archs = ("sm_80", "sm_89", "sm_90a")  # those that are not read, too
    assert sorted(line.partition(" uses")[0] for line in told) == [
        f"toy::local for {arch}" for arch in archs
    ]


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "warps"),
    [
        ("sm_80", 256, 32, 0, 64),
        ("sm_80", 128, 128, 0, 16),  # 16384 registers a block
        ("sm_90a", 128, 129, 0, 12),  # 129 * 32 becomes 17 * 256: three warps a partition
        ("sm_90a", 128, 64, 64 << 10, 12),  # 3 blocks of 65 KB in 228 KB
        ("sm_80", 128, 64, 64 << 10, 8),  # 2 in 164 KB
        ("sm_90a", 32, 24, 0, 32),  # 32 blocks, not more
        ("sm_86", 1024, 32, 0, 32),  # a second block would be 64 warps, of 48
        ("sm_90a", 256, 255, 0, 8),
        ("sm_120", 128, 32, 99 << 10, 4),
    ],
)
def test_resident_warps(arch, threads, registers, shared, warps):
    assert resources.resident_warps(arch, threads, registers, shared) == warps


def test_what_is_worse():
    _, committed = resources.read_committed()
    assert resources.compare(committed, committed) == ([], [])
    for figure in resources.FIGURES:
        more = [replace(each, **{figure: getattr(each, figure) + 1}) for each in committed]
        worse, better = resources.compare(more, committed)
        told, other = (better, worse) if figure == "warps" else (worse, better)
        assert len(told) == len(committed) and figure in told[0] and other == []
        worse, better = resources.compare(committed, more)
        assert len(worse if figure == "warps" else better) == len(committed)
    gone = replace(committed[0], kernel="old")
    worse, _ = resources.compare(committed, [*committed, gone])
    assert worse == [f"old for {gone.arch} is gone"]
    worse, _ = resources.compare([*committed, replace(committed[0], kernel="new")], committed)
    assert worse == [f"new for {committed[0].arch} has no row"]
    one_arch = [kernel for kernel in committed if kernel.arch == "sm_90a"]
    assert resources.compare(one_arch, committed) == ([], [])


def test_writing_and_reading(tmp_path, monkeypatch):
    version, committed = resources.read_committed()
    monkeypatch.setattr(resources, "COMMITTED", tmp_path / "again.csv")
    other = replace(committed[0], arch="sm_120")
    resources.write([*committed, other], version)
    assert resources.read_committed() == (version, committed)


def test_a_kernel_without_its_dynamic_shared_memory_is_refused():
    assert resources.dynamic_shared("tiled_csl::unpack_kernel") == 0
    with pytest.raises(SystemExit, match=r"dynamic_shared\.csv does not say how no::such"):
        resources.dynamic_shared("no::such_kernel")
