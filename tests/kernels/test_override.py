# SPDX-License-Identifier: Apache-2.0
"""Launches that benchmarks give to products, in C++ and from Python; without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from emulation import KERNELS

from flashsparse_plugin.ops import plan
from flashsparse_plugin.ops.library import ObjectStatus

OWN = "many 7 66 2"  # what the driver plans


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    binary = tmp_path_factory.mktemp("override") / "driver"
    source = Path(__file__).with_name("override_driver.cpp")
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{KERNELS}"]
    subprocess.run(["g++", *options, source, "-o", binary, "-pthread"], check=True)

    def run(*lines: str) -> list[str]:
        command = {"input": "\n".join(lines), "capture_output": True, "text": True, "check": True}
        return subprocess.run([binary], **command).stdout.splitlines()

    return run


def test_the_innermost_launch_of_a_format_counts(driver):
    told = driver(
        *("multiply same", "give toy.few 1 99", "multiply same", "give toy.many 2 11"),
        *("give toys.few 3 3", "give to.few 3 3", "multiply same", "multiply same"),
        *("end", "end", "end", "multiply same", "end", "multiply same"),
    )
    assert told == [
        *(OWN, "few 1 99 2", "many 2 11 2", "many 2 11 2"),
        *("0", "0", "2", "few 1 99 2", "2", OWN),
    ]


def test_other_threads_plan_as_ever(driver):
    told = driver("give toy.few 1 99", "thread multiply same", "thread end", "multiply same")
    assert told == [OWN, "no launch is given on this thread", "few 1 99 2"]


def test_what_cannot_be_launched_is_told(driver):
    assert driver("multiply other") == ["library"]
    (other, _) = driver("give toy.few 1 99", "multiply other", "end")
    assert other == "toy.few multiplies x in the dtype of the weight only"
    (wrong,) = driver("give toy.sparse 1 99", "multiply same")
    assert wrong == "toy.sparse does not multiply these values. Remedy: toy.few, toy.many"
    (short,) = driver("give toy.few 1", "multiply same")[-1:]
    assert short.endswith("a launch has 2 numbers (shape blocks), not 1")
    (broken,) = driver("give toy.few 1 133", "multiply same")[-1:]
    assert broken.endswith(
        "toy.few cannot multiply 8 tokens by a [300, 200] weight with the launch 1 133 "
        "(shape blocks): too many blocks. Remedy: a launch of candidates()"
    )
    assert driver("give toy.few 1 -1") == ["toy.few: a launch has no number like -1"]


@pytest.fixture
def ops(monkeypatch):
    """Ops that remember what they are told; `launches` is what products take."""
    given: list = []
    fake = SimpleNamespace(given=given, launches=1, launch_fields=plan.ops.launch_fields)
    fake.override_launch = lambda kernel, numbers: given.append((kernel, numbers))
    fake.end_override = lambda: given.pop() and fake.launches
    monkeypatch.setattr(plan, "ops", fake)
    monkeypatch.setitem(plan.STATUS, "_C_cuda", ObjectStatus(None, True, "loaded"))
    return fake


def test_it_ends_with_its_block(ops):
    with plan.override("nm_gather.packed", (1, 2)), plan.override("dense.gemv", [3]):
        assert ops.given == [("nm_gather.packed", [1, 2]), ("dense.gemv", [3])]
    assert ops.given == []
    with pytest.raises(ZeroDivisionError), plan.override("dense.gemv", [3]):
        raise ZeroDivisionError
    assert ops.given == []


def test_a_launch_that_no_product_took_is_an_error(ops):
    ops.launches = 0
    untaken = pytest.raises(RuntimeError, match="no product was launched by dense.gemv")
    with untaken, plan.override("dense.gemv", [3]):
        pass
    with pytest.raises(ZeroDivisionError), plan.override("dense.gemv", [3]):  # which says more
        raise ZeroDivisionError
    assert ops.given == []


@pytest.mark.parametrize(
    ("kernel", "launch", "message"),
    [
        ("toy.few", [1], "no planner for a kernel toy.few"),
        ("dense.flat_gemm", [1], r"dense.flat_gemm has 2 numbers \(shape split\), not 1"),
    ],
)
def test_wrong_launches_are_refused(ops, kernel, launch, message):
    with pytest.raises(RuntimeError, match=message), plan.override(kernel, launch):
        pass
    assert ops.given == []


def test_it_needs_the_cuda_object(monkeypatch):
    monkeypatch.setitem(plan.STATUS, "_C_cuda", ObjectStatus(None, False, "not built: no nvcc"))
    missing = pytest.raises(RuntimeError, match="is a CUDA kernel. Those are not built: no nvcc")
    with missing, plan.override("dense.gemv", [1]):
        pass
