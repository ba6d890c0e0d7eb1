# SPDX-License-Identifier: Apache-2.0
"""The program that checks and times exact weights in 12 bits, on a CPU."""

from __future__ import annotations

import sys

import _results
import lossless
import pytest
import torch

from flashsparse_plugin.formats.unstructured.exact_units import ExactUnits


@pytest.fixture
def run(monkeypatch, tmp_path):
    """main() with options; a check of one small layer."""
    monkeypatch.setattr(lossless, "TOKENS", (1, 33))
    monkeypatch.setattr(lossless, "small_cases", lambda: iter([(33, 300)]))

    def run(*options):
        toy = ["--device", "cpu", "--layers", "48x256", "--replays", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [lossless.__file__, *toy, *options])
        return lossless.main(), tmp_path

    return run


def test_it_checks_and_then_times(run, capsys):
    code, folder = run("--tokens", "1,64", "--launches", "3")
    rows = _results.read(folder / "lossless.csv")["rows"]
    assert code == 0 and [(row["kind"], row["tokens"]) for row in rows] == [
        ("lossless", 1),
        ("lossless", 64),
        ("2:4 e4m7", 1),
        ("2:4 e4m7", 64),
    ]
    assert [row["kernel"] for row in rows] == ["few", "many"] * 2
    for row in rows:
        assert min(row["us"], row["near_us"], row["dense_us"]) > 0 <= row["pack_gb_s"]
        assert row["expected_us"] > 0
        assert row["bits"] > (12 if row["kind"] == "lossless" else 7)
    assert "unit vectors" in capsys.readouterr().out


def test_it_may_only_check(run):
    code, folder = run("--check")
    assert code == 0 and not (folder / "lossless.csv").exists()


def test_nothing_is_timed_if_something_is_wrong(run, monkeypatch, capsys):
    right = ExactUnits().pack

    def wrong(weight, scheme):
        changed = weight.clone()
        changed[0, 0] += 1
        return right(scheme.format.conform(changed, scheme), scheme)

    monkeypatch.setattr(ExactUnits(), "pack", wrong)
    code, folder = run()
    assert code == 1 and not (folder / "lossless.csv").exists()
    assert "FAILED unpacked bit for bit" in capsys.readouterr().out


def test_wild_weights_have_every_kind_of_exception():
    weight = lossless.wild_weight((64, 600), 1, torch.device("cpu"))
    packed = ExactUnits().pack(weight, lossless.SCHEMES["lossless"])
    assert packed.tensors["slots"].count_nonzero() > 50
    assert int(packed.tensors["listed_offsets"][-1]) > 50
    assert torch.equal(packed.unpack(), weight)
