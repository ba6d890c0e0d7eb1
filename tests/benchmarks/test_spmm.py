# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark's own logic, without a GPU: its checks find planted mistakes, its time ends."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import _formats
import _measure
import _sparse
import _spmm_report
import pytest
import spmm
import tables
import torch
import torch.nn.functional as F
from _device import Budget, Stopwatch, _results, _spmm_goals
from _layers import LLAMA, OPT, Layer, layer
from _sparse import Case, SparseChecker, small_cases
from _speed import FEW, MANY, STAGES, ZEROS, Speed, Stage
from _tools import MARK, by_call, profile_summary, raw_metrics

import flashsparse_plugin as fs

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu" / "spmm.py"
CPU = torch.device("cpu")
CASES = (
    Case((129, 200), 0.8, torch.float16, (1, 17)),
    Case((300, 256), 0.5, torch.bfloat16, (3, 16)),
    Case((64, 128), 0.8, torch.bfloat16, (2,), activations=torch.float32),
)
EITHER = Case((129, 200), 0.8, torch.float16, (1, 17), either=True)


@pytest.mark.slow
def test_a_toy_run_from_end_to_end(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (
        ran.stdout.count("80 checks") == len(_formats.unstructured())
        and ", 0 failures" in ran.stdout
    )
    assert "dense time / time" in ran.stdout
    result = _results.read(tmp_path / "spmm.csv")
    rows, about = result["rows"], result["about"]
    formats = _formats.unstructured()
    assert len(rows) == 2 * 2 * 3 * len(formats)
    assert {row["format"] for row in rows} == set(formats)
    assert all(row["us"] > 0 and row["ratio"] > 0 for row in rows)
    for row in rows:  # either implementation, where there are many tokens
        either = {"sparse_us", "unpacked_us"} & set(row)
        assert len(either) == (2 if row["tokens"] >= MANY[0] else 0)
        assert all(row[name] > 0 for name in either)
    assert not any("unpruned_us" in row for row in rows)  # a toy's tokens are too few
    assert about["copy_gb_s"] > 0 and about["date"] and about["torch"]


def test_without_a_gpu_it_says_so(monkeypatch):
    if torch.cuda.is_available():
        pytest.fail("this test is about machines without a GPU")
    monkeypatch.setattr(sys, "argv", [str(PROGRAM)])
    with pytest.raises(SystemExit, match="--device cpu"):
        spmm.main()


multiply = _formats.multiply


def checker():
    return SparseChecker(CPU, CPU, graphs=False, format="tiled_csl")


def checked(monkeypatch, linear=multiply, todo=CASES):
    """Tally of cases with another multiplication in the place of ours."""
    monkeypatch.setattr(_formats, "multiply", linear)
    return checker().run(iter(todo), Budget(60))


def test_the_checks_pass_what_is_right(monkeypatch):
    tally = checked(monkeypatch)
    assert tally.failures == [] and 0 < tally.worst < 1
    assert tally.checks["exact in each element"] == 5


def test_either_implementation_is_checked(monkeypatch):
    assert checked(monkeypatch, todo=[EITHER]).checks["exact in each element"] == 2 * 3
    for name, wrong in _formats.IMPLEMENTATIONS.items():

        def faulty(packed, x, bias=None, plan=None, wrong=wrong):
            y = multiply(packed, x, bias, plan)
            return y + 1 if plan == wrong else y

        tally = checked(monkeypatch, faulty, [EITHER])
        assert tally.failures and all(name in failure for failure in tally.failures)


def test_every_launch_is_checked(monkeypatch):
    class Launch(SimpleNamespace):
        def linear(self, packed, x, bias=None):
            return multiply(packed, x, bias) + self.error

        def __str__(self):
            return f"a launch off by {self.error}"

    made = [Launch(error=0), Launch(error=1)]
    monkeypatch.setattr(_sparse, "launches", lambda *arguments: made)
    planned = Case((129, 200), 0.8, torch.float16, (1,), planned=True)
    tally = checked(monkeypatch, todo=[planned])
    assert tally.checks["exact in each element"] == 3
    assert tally.failures and all("off by 1" in failure for failure in tally.failures)


def test_a_lost_weight_is_found(monkeypatch):
    def lossy(packed, x, bias=None, plan=None):
        weight = packed.unpack()
        row, column = weight.nonzero()[37]
        weight[row, column] = 0
        return multiply(fs.pack(weight, "tiled_csl"), x, bias)

    assert any("each element" in failure for failure in checked(monkeypatch, lossy).failures)


def test_another_packing_on_the_device_is_found(monkeypatch):
    made = []

    def moody(weight, format):
        made.append(fs.pack(weight * (1 if len(made) % 2 else 2), format))
        return made[-1]

    fake = SimpleNamespace(pack=moody, PackedWeight=fs.PackedWeight)
    monkeypatch.setattr(_sparse, "fs", fake)
    failures = checked(monkeypatch).failures
    assert any("unpacked" in failure for failure in failures)
    assert any("packed" in failure and "unpacked" not in failure for failure in failures)


def test_an_output_that_was_not_written_is_found(monkeypatch):
    def forgetful(packed, x, bias=None, plan=None):
        y = torch.empty(x.shape[0], packed.shape[0], dtype=x.dtype)
        y[:, :-1] = multiply(packed, x, bias)[:, :-1]
        return y

    assert any("norm" in failure for failure in checked(monkeypatch, forgetful).failures)


def test_sums_in_16_bits_are_found(monkeypatch):
    def hasty(packed, x, bias=None, plan=None):
        half = x.shape[1] // 2
        left, right = x.clone(), x.clone()
        left[:, half:], right[:, :half] = 0, 0
        y = multiply(packed, left) + multiply(packed, right)
        return y if bias is None else y + bias

    assert checked(monkeypatch, hasty).failures


def test_another_result_each_time_is_found(monkeypatch):
    calls = []

    def moody(*arguments, **options):
        calls.append(0)
        y = multiply(*arguments, **options)
        y[0, 0] *= 1 + torch.finfo(y.dtype).eps * (len(calls) % 2)
        return y

    assert any("same again" in failure for failure in checked(monkeypatch, moody).failures)


def test_an_error_is_a_failure_and_the_rest_is_checked(monkeypatch):
    def refusing(packed, x, bias=None, plan=None):
        if x.shape[0] == 17:
            raise RuntimeError("not 17")
        return multiply(packed, x, bias)

    tally = checked(monkeypatch, refusing)
    (failure,) = tally.failures
    assert "not 17" in failure and tally.checks["unpacked"] == 3


def test_the_end_of_the_time_is_told():
    tally = checker().run(small_cases(), Budget(-1))
    assert tally.out_of_time and not tally.checks
    assert "OUT OF TIME" in tally.summary()


def test_all_that_was_measured_is_kept_when_time_ends():
    first, second = Layer("", "", 128, 64), Layer("", "", 128, 128)
    speed = Speed(["tiled_csl"], CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    budget = Budget(60)
    for _ in speed.run([Stage([first, second], (80,), (1, 2))], budget):
        budget._end = 0  # the time is over after the first
    assert [row["shape"] for row in speed.rows] == ["128x64"] * 2


def test_csr_joins_the_rows_of_its_point():
    small = Layer("", "", 128, 64)
    speed = Speed(["tiled_csl"], CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    stages = [Stage([small], (80, 90), (1,)), Stage([small], (90,), (1,), csr=True)]
    assert len(list(speed.run(stages, Budget(60)))) == 2
    first, second = speed.rows
    assert not {"csr_us", "csr_refused"} & set(first)
    assert {"csr_us", "csr_refused"} & set(second)  # by the torch and its libraries


def test_layers():
    assert layer("28672x7168").model == "OPT-30B" and layer("100x200").shape == (100, 200)
    assert len(OPT) == 12 and len(set(map(str, OPT))) == 12
    assert all(each.out_features % 128 == each.in_features % 64 == 0 for each in [*OPT, *LLAMA])
    points = {
        (str(each), sparsity, tokens)
        for stage in STAGES
        for each in stage.layers
        for sparsity in stage.sparsities
        for tokens in stage.tokens
    }
    assert len(points) == 20 * len(ZEROS) * (
        len(FEW) + len(MANY)
    )  # every layer, sparsity and number of tokens


def test_many_tokens_may_be_as_wrong_as_the_library_and_no_more(monkeypatch):
    case = Case((300, 256), 0.5, torch.bfloat16, (257,))

    def rounded(x, weight, bias):  # before the bias is added
        return torch.mm(x, weight.T) + bias

    def off(packed, x, bias=None, plan=None):
        weight = packed.unpack()
        return F.linear(x, weight) if bias is None else rounded(x, weight, bias)

    monkeypatch.setattr(_formats, "multiply", off)

    def failures():
        todo = iter([Case((1, 1), 0.0, torch.bfloat16, (1,)), case])  # the second has a bias
        return checker().run(todo, Budget(60)).failures

    (failure,) = failures()
    assert "each element" in failure and "257 tokens" in failure
    monkeypatch.setattr(_sparse, "F", SimpleNamespace(linear=rounded))
    assert failures() == []


def test_formats_that_keep_any_zeros_are_compared():
    assert _formats.unstructured() == ("tiled_csl", "tiled_bitmap")
    assert spmm.formats("tiled_csl") == ["tiled_csl"]
    with pytest.raises(argparse.ArgumentTypeError, match="'nm_vector'.*there are tiled_csl"):
        spmm.formats("tiled_csl,nm_vector")


def test_a_format_that_fails_is_left_out_and_named(monkeypatch, capsys):
    packed_for_kernels = _formats.packed_for_kernels

    def refusing(weight, format):
        if format == "bad":
            raise RuntimeError("no such kernel")
        return packed_for_kernels(weight, format)

    monkeypatch.setattr(_formats, "packed_for_kernels", refusing)
    speed = Speed(["bad", "tiled_csl"], CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    list(speed.run([Stage([Layer("", "", 128, 64)], (50, 80), (1,))], Budget(60)))
    assert [row["format"] for row in speed.rows] == ["tiled_csl"] * 2
    assert speed.failed == {"bad": "no such kernel"}
    assert capsys.readouterr().out.count("bad is left out") == 1


def test_an_implementation_that_refuses_a_number_of_tokens_says_so(monkeypatch):
    def few(packed, x, bias=None, plan=None):
        if plan == _formats.IMPLEMENTATIONS["sparse"] and len(x) > 64:
            raise RuntimeError("at most 64 tokens")
        return multiply(packed, x, bias, plan)

    monkeypatch.setattr(_formats, "multiply", few)
    speed = Speed(["tiled_csl"], CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    list(speed.run([Stage([Layer("", "", 128, 64)], (50,), (64, 128))], Budget(60)))
    first, second = speed.rows
    assert "sparse_us" in first and "sparse_us" not in second and not speed.failed
    assert second["sparse_refused"] == "at most 64 tokens" and second["unpacked_us"] > 0


ABOUT = {"gpu": "NVIDIA H200", "cpu": "CPU", "dtype": "float16", "read_gb_s": 1}
ABOUT |= {"driver_version": "1", "torch": "2", "date": "2026-11-20T00:00"}


def measured(format, ratio, tokens=8, shape="28672x7168", sparsity=80, model="OPT-30B"):
    made = {"model": model, "shape": shape, "tokens": tokens, "sparsity": sparsity}
    made |= {"format": format, "ratio": ratio, "us": 10 / ratio, "dense_us": 10, "fp8_us": 5}
    return made | {"ratio_bound": 2.5, "of_bound": 0.5}


def test_the_tables_for_the_documents():
    rows = [measured("a", 2.0), measured("a", 4.5, shape="7168x28672")]
    rows += [measured("b", 3.0), measured("b", 3.0, shape="7168x28672")]
    rows += [measured("a", 9.0, model="Llama-3-8B"), measured("a", 9.0, tokens=96)]
    table = tables.TABLES["spmm_opt"]({"rows": rows, "about": ABOUT})
    assert "| 2 layers, tokens: | bound | 8 |" in table
    assert "| **80% zeros**, `a` | 2.50 | 3.00 |\n| **80% zeros**, `b` | 2.50 | 3.00 |" in table
    assert "| fp8, dense | 2.00 | 2.00 |" in table
    own = [row | {"format": "tiled_csl"} for row in rows if row["format"] == "a"]
    shares = tables.TABLES["spmm_shares"]({"rows": own + rows, "about": ABOUT})
    assert "| 80% zeros | 50% |" in shares


def test_goals_are_held_against_each_format_and_the_fastest_of_a_layer(capsys):
    rows = [measured("a", 2.0), measured("a", 4.5, shape="7168x28672")]
    rows += [measured("b", 1.0), measured("b", 8.0, shape="7168x28672")]
    table = tables.TABLES["spmm_decoding"]({"rows": rows, "about": ABOUT})
    assert "| 1 to 8 tokens, over 100 M weights: goal | 1.5 | 1.75 | 2 | 2.4 | 2.9 |" in table
    assert "| `a` |  |  |  | **3.00** |  |" in table  # 2.4 is the goal
    assert f"| {_spmm_goals.BEST} |  |  |  | **4.00** |  |" in table
    assert "4096x4096" not in table and "H100" not in table  # not measured; another card's goal
    assert "The slowest layer, by its fastest format: 2.00 (28672x7168, 8 tokens" in table
    slow = [row | {"ratio": 0.5} for row in rows]
    assert "| `a` |  |  |  | 0.50 |  |" in tables.TABLES["spmm_decoding"](
        {"rows": slow, "about": ABOUT}
    )
    _spmm_report.show(rows, ABOUT)
    shown = capsys.readouterr().out
    assert "✓ 3.00" in shown and max(map(len, shown.splitlines())) <= 80


def test_prompts_are_compared_with_an_unpruned_dense_weight_too(capsys):
    rows = [measured("a", 0.8, tokens=512), measured("a", 0.9, tokens=96)]
    rows[0]["unpruned_us"] = 12  # dense 10, and 12.5 by format a
    _spmm_report.show(rows, ABOUT)
    first, second = capsys.readouterr().out.split("over an unpruned dense weight")
    assert "0.80" in first and "✓ 0.90" in first
    assert "✓ 0.96" in second and "96 to 128" not in second


def test_many_tokens_are_timed_by_turns_with_dense_weights(monkeypatch):
    asked = []
    in_turns = Stopwatch.in_turns

    def listening(self, calls):
        asked.append(list(calls))
        return in_turns(self, calls)

    monkeypatch.setattr(Stopwatch, "in_turns", listening)
    speed = Speed(["tiled_csl"], CPU, torch.bfloat16, Stopwatch(CPU, 3), 1e10)
    list(speed.run([Stage([Layer("", "", 128, 64)], (50,), (1, 64, 128))], Budget(60)))
    dense = [f"{name} {way}" for name in ("dense", "unpruned") for way in ("cublas", "transposed")]
    assert asked == [["us", "sparse_us", "unpacked_us", *dense]]
    few, some, many = speed.rows
    assert not {"unpruned_us", "unpruned_by"} & (few.keys() | some.keys())
    assert many["unpruned_us"] > 0 and many["unpruned_by"] in ("cublas", "transposed")
    assert many["ratio"] == pytest.approx(many["dense_us"] / many["us"], abs=0.01)


def test_turns_begin_with_another_one_each_round():
    told = []

    def clock(name):
        return lambda: told.append(name) or float(len(told))

    samples = _measure.in_turns({name: clock(name) for name in "abc"}, rounds=4)
    rounds = ["".join(told[i : i + 3]) for i in range(0, 15, 3)]
    assert rounds == ["cba", "abc", "acb", "bca", "bac"]
    assert samples["a"] == [4.0, 7.0, 12.0, 14.0]  # without the first round


def test_what_only_one_format_has_measured_is_not_compared():
    rows = [measured("a", 2.0), measured("b", 3.0), measured("a", 1.0, tokens=16)]
    assert _spmm_goals.fastest(rows) == [rows[1]]


NCU_COLUMNS = (
    *("ID", "Kernel Name", "Block Size", "gpu__time_duration.sum"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "unrelated",
)
NCU = f"""==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "linear_kernel" - 0: 0%....50%....100% - 41 passes
"{'","'.join(NCU_COLUMNS)}"
"","","","us","","inst","%","inst",""
"0","unpack_kernel(const uint4 *, int)","(128, 1, 1)","1,042.5","3,000","1,000","81.2","2.25","3"
"""


def test_reading_what_ncu_writes():
    rows = raw_metrics(NCU)
    assert [row["value"] for row in rows] == ["1042.5", "3000", "1000", "81.2", "2.25"]
    assert {row["kernel"] for row in rows} == {"unpack_kernel"}
    point = {"format": "a", "shape": "1x1", "tokens": 1, "sparsity": 80}
    (line,) = profile_summary([point | row for row in rows])
    assert line["time"] == "1042.5 us" and line["stalls"] == "barrier 2.2"
    assert line["wavefronts a store"] == "3.00"
    assert raw_metrics("==ERROR== nothing") == []


def test_calls_under_ncu_are_told_apart_by_the_marks_between_them():
    kernels = (f"void {MARK}(long)", "transpose", "linear", f"void {MARK}(long)", "linear")
    rows = [{"kernel": kernel, "metric": name} for kernel in kernels for name in "ab"]
    first, second = by_call(rows)
    assert [row["kernel"] for row in first] == ["transpose"] * 2 + ["linear"] * 2
    assert [row["kernel"] for row in second] == ["linear"] * 2
