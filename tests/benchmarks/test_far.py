# SPDX-License-Identifier: Apache-2.0
"""The programs that time layers after another kernel, on a CPU; and how `auto` is judged."""

from __future__ import annotations

import sys

import _results
import auto
import dataflow
import far
import layers
import pytest
import step
import torch

from flashsparse_plugin.evaluation.dense_products import dense_products, fp8


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(program, *options):
        toy = ["--device", "cpu", "--layers", "48x256", "--replays", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [program.__file__, *toy, *options])
        assert program.main() == 0
        return tmp_path

    return run


def test_each_kind_is_right_and_timed(run):
    names = [*far.CHOICES, *far.UNTIMED]
    rows = run(far, "--tokens", "1,8", "--kinds", ";".join(names)) / "far.csv"
    rows = _results.read(rows)["rows"]
    assert [(row["kind"], row["tokens"]) for row in rows] == [
        (kind, tokens) for kind in ("int4", *names) for tokens in (1, 8)
    ]
    assert all(min(row["us"], row["near_us"], row["dense_us"]) > 0 for row in rows)


def test_a_step_is_right_and_timed_in_each_way(run, capsys):
    shapes = "512x256,256x256,512x256,256x256"
    path = run(step, "--layers", shapes, "--depth", "2", "--tokens", "3", "--kinds", "2:4")
    dense, sparse = _results.read(path / "step.csv")["rows"]
    assert dense["kind"] == step.BFLOAT16 and not dense.get("ours_ms")
    assert all(sparse[f"{way}_ms"] > 0 for way in step.WAYS)
    assert "0 results are wrong" in capsys.readouterr().out


def fp8_beside(others):
    """What a GPU has: fp8, which torch multiplies on a CPU, too; and a library that is missing."""
    return lambda weight: [fp8(weight), *others(weight), ("int4, Marlin", "No module named 'vllm'")]


def test_rivals_of_a_gpu_have_rows_and_the_missing_a_line(run, monkeypatch, capsys):
    for program, options in ((far, ["--kinds", "2:4"]), (layers, ["--kinds", "2:4"])):
        monkeypatch.setattr(program, "dense_products", fp8_beside(dense_products))
        path = run(program, "--tokens", "1,8", *options) / f"{program.__name__}.csv"
        rows = _results.read(path)["rows"]
        assert "int4, Marlin is left out: No module named 'vllm'" in capsys.readouterr().out
        kinds = list(dict.fromkeys(row["kind"] for row in rows))
        if program is far:
            assert kinds == ["fp8", "fp8 and quantizing", "int4", "2:4"]
        else:
            assert kinds == ["dense", "fp8", "int4", "2:4"]
            known = dataflow.served_times(rows, torch.bfloat16)
            assert [weight.format for weight in known] == ["dense", "sparse_24"]


@pytest.mark.parametrize("name", ["TOLERANCE", "OF_RIVALS"])
def test_a_wrong_product_is_told(run, monkeypatch, name):
    monkeypatch.setattr(far, name, 1e-9)
    with pytest.raises(AssertionError):
        run(far, "--tokens", "1", "--kinds", "2:4")


def test_each_implementation_has_a_row(run):
    options = ("--tokens", "1,64", "--kinds", "2:4;90% tiled_csl")
    rows = _results.read(run(layers, *options) / "layers.csv")["rows"]
    assert [row["kind"] for row in rows] == ["dense", "int4", "2:4", "90% tiled_csl"]
    assert all(row["1"] > 0 and row["64"] > 0 for row in rows)


def test_what_auto_chose_is_what_is_committed():
    rows = [row for gpu in auto.GPUS for row in auto.points(gpu)]
    assert rows == _results.read(auto.PATH)["rows"] and len(rows) == 480
    assert all(row["best_us"] <= min(row["us"], row["dense_us"]) for row in rows)
    assert sum(row["us"] > auto.RIGHT * row["dense_us"] for row in rows) <= 0.02 * len(rows)
