# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark of attention, without a GPU: a toy run, and its checks find mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attention
import pytest
import torch
from _device import Budget, _results

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu" / "attention.py"
CASES = [
    attention.Case(attention.Shape(2, 2, 3, 64, 90), torch.bfloat16, masked=True),
    attention.Case(attention.Shape(2, 2, 3, 64, 90), torch.float16, paged=True, nhd=True),
]


def checker():
    cpu = torch.device("cpu")
    return attention.AttentionChecker(cpu, cpu, graphs=False)


@pytest.mark.slow
def test_a_toy_run_from_end_to_end(tmp_path):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ", 0 failures" in ran.stdout and "µs of one token a sequence" in ran.stdout
    (row,) = _results.read(tmp_path / "attention.csv")["rows"]
    assert all(row[f"{name}_us"] > 0 for name in ("online", "phi", "paged", "sdpa"))


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (lambda out, recomputed: (out * 1.05, recomputed), "exact"),
        (
            lambda out, recomputed: (out.index_fill(2, torch.tensor(3), torch.nan), recomputed),
            "exact",
        ),
        (lambda out, recomputed: (out, torch.zeros_like(recomputed)), "recomputed"),
        (lambda out, recomputed: (out, recomputed + 1), "recomputed"),
        (lambda out, recomputed: (out, recomputed + torch.randint_like(recomputed, 9)), "again"),
    ],
)
def test_planted_mistakes_are_found(monkeypatch, spoil, check):
    call = attention.AttentionChecker._call

    def spoiled(self, *args, **options):
        right = call(self, *args, **options)
        return lambda query, phi: spoil(*right(query, phi))

    def failures():
        tally = checker().run(iter(CASES), Budget(60))
        return tally.failures

    assert failures() == []
    monkeypatch.setattr(attention.AttentionChecker, "_call", spoiled)
    assert any(check in failure for failure in failures())


def test_its_time_ends():
    tally = checker().run(iter(CASES), Budget(-1))
    assert tally.out_of_time and not tally.checks
