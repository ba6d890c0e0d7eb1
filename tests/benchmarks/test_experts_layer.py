# SPDX-License-Identifier: Apache-2.0
"""The program that checks and times layers of experts as models run them, on a CPU."""

from __future__ import annotations

import sys

import _results
import experts_layer
import pytest


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(experts_layer, "COUNTS", (5,))
    monkeypatch.setattr(experts_layer, "CHECKED", experts_layer.CHECKED[:1])
    monkeypatch.setattr(experts_layer.Measured, "_check_model", lambda *_: None)

    def run(*options):
        toy = ["--device", "cpu", "--models", "toy", "--replays", "1", "--out", str(tmp_path)]
        toy += ["--tokens", "5", "--kinds", "2:4, int8", *options]
        monkeypatch.setattr(sys, "argv", [experts_layer.__file__, *toy])
        code = experts_layer.main()
        return code, _results.read(tmp_path / "experts_layer.csv")["rows"]

    return run


def test_a_layer_is_right_and_timed(run, capsys):
    code, rows = run()
    assert code == 0 and ", 0 wrong" in capsys.readouterr().out
    assert [row["kind"] for row in rows][:2] == ["2:4, int8", "2:4, int8, unpacked"]
    assert all(row["layer_us"] > 0 for row in rows)


def test_nothing_is_timed_while_a_result_is_wrong(run, monkeypatch, capsys):
    multiply = experts_layer.multiply
    monkeypatch.setattr(experts_layer, "multiply", lambda *given: multiply(*given) * 1.1)
    code, rows = run("--check")
    assert code == 1 and not rows and "the op: off by" in capsys.readouterr().out
