# SPDX-License-Identifier: Apache-2.0
"""The programs that time layers after another kernel, on a CPU; and how `auto` is judged."""

from __future__ import annotations

import sys

import _results
import auto
import far
import layers
import pytest


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(program, *options):
        toy = ["--device", "cpu", "--layers", "48x256", "--replays", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [program.__file__, *toy, *options])
        assert program.main() == 0
        return tmp_path

    return run


def test_each_kind_is_right_and_timed(run):
    rows = _results.read(run(far, "--tokens", "1,8") / "far.csv")["rows"]
    assert [(row["kind"], row["tokens"]) for row in rows] == [
        (kind, tokens) for kind in far.NAMED for tokens in (1, 8)
    ]
    assert all(min(row["us"], row["near_us"], row["dense_us"]) > 0 for row in rows)


def test_a_wrong_product_is_told(run, monkeypatch):
    monkeypatch.setattr(far, "TOLERANCE", 1e-9)
    with pytest.raises(AssertionError):
        run(far, "--tokens", "1", "--kinds", "2:4")


def test_each_implementation_has_a_row(run):
    options = ("--tokens", "1,64", "--kinds", "2:4;90% tiled_csl")
    rows = _results.read(run(layers, *options) / "layers.csv")["rows"]
    assert [row["kind"] for row in rows] == ["dense", "2:4", "90% tiled_csl"]
    assert all(row["1"] > 0 and row["64"] > 0 for row in rows)


def test_what_auto_chose_is_what_is_committed():
    rows = [row for gpu in auto.GPUS for row in auto.points(gpu)]
    assert rows == _results.read(auto.PATH)["rows"] and len(rows) == 480
    assert all(row["best_us"] <= min(row["us"], row["dense_us"]) for row in rows)
    assert sum(row["us"] > auto.RIGHT * row["dense_us"] for row in rows) <= 0.02 * len(rows)
