# SPDX-License-Identifier: Apache-2.0
"""The dense layers' benchmark, without a GPU: its checks find planted mistakes, its time ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import _dense
import gemm
import pytest
import torch
from _dense import LAYERS, OPS, Case, DenseChecker, configurations, layers_once, small_cases
from _device import Budget, Stopwatch, _results
from _layers import Layer

from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu" / "gemm.py"
CPU = torch.device("cpu")
CASES = (
    Case((129, 200), torch.float16, (1, 17)),
    Case((65, 256), torch.bfloat16, (3, 64)),
    Case((30, 77), torch.bfloat16, (8,), offset=3, gap=5),
)


@pytest.mark.slow
def test_a_toy_run_from_end_to_end(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "66 checks" in ran.stdout and ", 0 failures" in ran.stdout
    assert "The dispatcher: " in ran.stdout
    result = _results.read(tmp_path / "gemm.csv")
    rows = result["rows"]
    assert len(rows) == 2 * (2 + 1)  # gemv takes 1 token of the 1 and 16
    assert all(row["us"] > 0 and row["ratio"] > 0 for row in rows)
    assert result["about"]["read_gb_s"] > 0


def test_without_a_gpu_it_says_so(monkeypatch):
    if torch.cuda.is_available():
        pytest.fail("this test is about machines without a GPU")
    monkeypatch.setattr(sys, "argv", [str(PROGRAM)])
    with pytest.raises(SystemExit, match="--device cpu"):
        gemm.main()


def checked(monkeypatch, damage=None):
    """Tally of CASES where each op's result goes through damage(y, x, weight, bias)."""

    def planted(op):
        def call(x, weight, bias=None):
            y = getattr(ops, op)(x, weight, bias)
            return damage(y, x, weight, bias) if damage else y

        return call

    monkeypatch.setattr(_dense, "ops", SimpleNamespace(**{op: planted(op) for op in OPS}))
    return DenseChecker(CPU, CPU, graphs=False).run(iter(CASES), Budget(60))


def test_the_checks_pass_what_is_right(monkeypatch):
    tally = checked(monkeypatch)
    assert tally.failures == [] and 0 < tally.worst < 1
    assert tally.checks["exact in each element"] == 8  # gemv takes 3 of the 5 numbers of tokens


def test_a_lost_column_is_found(monkeypatch):
    def lossy(y, x, weight, bias):
        return torch.nn.functional.linear(x[:, :-1], weight[:, :-1], bias)

    assert any("each element" in failure for failure in checked(monkeypatch, lossy).failures)


def test_what_lies_beyond_a_row_is_found(monkeypatch):
    def greedy(y, x, weight, bias):
        place = weight.storage_offset() + weight.shape[1]
        y[:, :-1] += 0 * weight.as_strided((len(weight) - 1,), (weight.stride(0),), place)
        return y

    failures = checked(monkeypatch, greedy).failures
    assert failures and all("30x77" in failure for failure in failures)


def test_an_output_that_was_not_written_is_found(monkeypatch):
    def forgetful(y, x, weight, bias):
        fresh = torch.empty_like(y)
        fresh[:, :-1] = y[:, :-1]
        return fresh

    assert any("norm" in failure for failure in checked(monkeypatch, forgetful).failures)


def test_sums_in_16_bits_are_found(monkeypatch):
    def hasty(y, x, weight, bias):
        half = x.shape[1] // 2
        y = x[:, :half] @ weight[:, :half].T + x[:, half:] @ weight[:, half:].T
        return y if bias is None else y + bias

    assert checked(monkeypatch, hasty).failures


def test_another_result_each_time_is_found(monkeypatch):
    calls = []

    def moody(y, x, weight, bias):
        calls.append(0)
        y[0, 0] *= 1 + torch.finfo(y.dtype).eps * (len(calls) % 2)
        return y

    assert any("same again" in failure for failure in checked(monkeypatch, moody).failures)


def test_an_error_is_a_failure_and_the_rest_is_checked(monkeypatch):
    def refusing(y, x, weight, bias):
        if len(x) == 17:
            raise RuntimeError("not 17")
        return y

    tally = checked(monkeypatch, refusing)
    (failure,) = tally.failures
    assert "not 17" in failure and tally.checks["the same again"] == 7


def test_the_end_of_the_time_is_told():
    tally = DenseChecker(CPU, CPU, graphs=False).run(small_cases(), Budget(-1))
    assert tally.out_of_time and not tally.checks


def test_all_that_was_measured_is_kept_when_time_ends():
    speed = gemm.Speed(CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    budget = Budget(60)
    for _ in speed.run([Layer("", "", 128, 64), Layer("", "", 128, 128)], (1,), budget):
        budget._end = 0  # the time is over after the first
    assert [row["shape"] for row in speed.rows] == ["128x64"] * 2


def test_every_compiled_kernel_is_a_configuration():
    found = list(configurations((4096, 4096)))
    kernels = {(each.op, each.arguments[0]) for each in found}
    assert len(kernels) == sum(len(compiled_shapes(f"dense.{op}")) for op in _dense.OPS)
    assert sum(not each.aligned for each in found) == 8 + 1
    assert {each.arguments[1] for each in found if each.op == "flat_gemm"} == set(range(1, 9))
    assert all(each.arguments[1] == 1 for each in configurations((8, 31)) if each.op != "gemv")


def test_layers():
    shapes = {layer.shape for layer in layers_once()}
    assert {(12288, 4096), (4096, 4096), (11008, 4096), (4096, 11008)} < shapes
    assert len(layers_once()) == len(shapes) == len({layer.shape for layer in LAYERS})
    assert {layer.model for layer in LAYERS} == {
        *("Llama2-7B", "OPT-6.7B", "ChatGLM2-6B", "Llama-3-8B")
    }


def test_what_the_dispatcher_would_choose():
    def row(tokens, op, us):
        return {"tokens": tokens, "op": op, "us": us, "dense_us": 10.0}

    rows = [row(1, "gemv", 5), row(1, "flat_gemm", 6), row(8, "gemv", 9), row(8, "flat_gemm", 6)]
    flow, times = gemm.dataflow_of([*rows, row(64, "flat_gemm", 12)])
    assert [flow.implementation(tokens) for tokens in (1, 8, 64)] == [
        *("gemv", "flat_gemm", "library")
    ]
    assert times[8] == {"gemv": 9, "flat_gemm": 6, "library": 10.0}
