# SPDX-License-Identifier: Apache-2.0
"""The program that times layers of experts, on a CPU."""

from __future__ import annotations

import sys

import _results
import experts
import experts_launches
import pytest


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*options):
        toy = ["--device", "cpu", "--models", "toy", "--replays", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [experts.__file__, *toy, "--tokens", "5", *options])
        return experts.main(), _results.read(tmp_path / "experts.csv")["rows"]

    return run


def test_each_kind_is_right_and_timed(run, capsys):
    code, rows = run("--kinds", "2:4, int8;2:4, int4 by 32")
    assert code == 0 and "4 results checked, 0 wrong" in capsys.readouterr().out
    for skew in ("uniform", "zipf"):
        own = [row["kind"] for row in rows if row["routing"] == skew]
        assert own[:2] == ["2:4, int8", "2:4, int4 by 32"]
    assert all(row["layer_us"] > 0 for row in rows)


def test_nothing_is_timed_while_a_result_is_wrong(run, monkeypatch, capsys):
    multiply = experts.Experts.multiply
    monkeypatch.setattr(experts.Experts, "multiply", lambda *given: multiply(*given) * 1.1)
    code, rows = run("--kinds", "2:4")
    assert code == 1 and not rows and "off by" in capsys.readouterr().out


def test_launches_are_timed_beside_what_is_planned(monkeypatch, tmp_path, capsys):
    toy = ["--device", "cpu", "--models", "toy", "--replays", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(
        sys, "argv", [experts_launches.__file__, *toy, "--tokens", "5", "--kinds", "2:4, int8"]
    )
    assert experts_launches.main() == 0
    (row,) = _results.read(tmp_path / "experts_launches.csv")["rows"]
    assert row["product"] == "planned" and row["us"] > 0  # a CPU has no other
    assert "planned: 1.000 of the fastest's time" in capsys.readouterr().out
