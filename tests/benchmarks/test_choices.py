# SPDX-License-Identifier: Apache-2.0
"""The table of "Is it for you?" takes the H200's figures of one run, where there is one."""

from __future__ import annotations

import csv

import _results
import choices
import known_quality
import pytest

from flashsparse_plugin.known_quality import RUINOUS, TABLE

KINDS = [kind for kinds in choices.KINDS.values() for kind in kinds]


def test_without_far_figures_those_of_each_kernels_run_are_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(choices, "FAR", tmp_path / "far.csv")
    table = choices.choices()
    assert {len(row) for row in table} == {len(choices.heads())} == {6}
    shown = {name for name in choices.KINDS if not name.startswith("none")}
    own = {"none, exact", "2:4, exact 12 bits", "none, fp8", "none, int4 (Marlin)"}
    own |= {f"2:4, 25% dense, {bits}-bit values" for bits in (4, 8)}
    assert {row[0] for row in table} == own | shown


def test_far_figures_are_of_large_layers_and_few_tokens(monkeypatch, tmp_path):
    monkeypatch.setattr(choices, "FAR", tmp_path / "far.csv")
    shared = {"near_us": 20.0, "dense_us": 60.0}
    rows = [
        {"shape": shape, "tokens": tokens, "kind": kind, "us": us} | shared
        for shape, tokens, us in (
            ("28672x7168", 1, 30.0),
            ("28672x7168", 8, 40.0),
            ("28672x7168", 64, 60.0),
            ("4096x4096", 1, 600.0),
        )
        for kind in KINDS
    ]
    _results.write(choices.FAR, {"gpu": "NVIDIA H200", "date": "2026-11-24"}, rows)
    heads, table = choices.heads(), {row[0]: row for row in choices.choices()}
    assert heads[1:3] == ["H200, in a model", "H200, back to back"]
    assert {len(row) for row in table.values()} == {len(heads)} == {7}
    assert table["2:4"][1:3] == ["1.5 to 2.0", "3.0"]
    assert table["none, fp8"][1] == "1.5 to 2.0; 1.5 to 2.0 with a kernel that quantizes x"
    assert table["none, int4 (Marlin)"][1] == "1.5 to 2.0; torch's: 1.5 to 2.0"
    assert choices.int4_at(8) == 1.5


def test_no_row_recommends_what_ruins_a_model_without_a_word():
    for name, *_, costs, advice in choices.choices():
        ruined = costs == "unknown" or float(costs.split(";")[0].split(" to ")[-1]) > RUINOUS
        words = ("not FlashSparse", "after training", "was trained", "no faster than fp8")
        assert not ruined or any(each in advice for each in words), name


def test_without_int4_in_far_the_runs_of_kernels_have_it():
    rows = _results.read(choices.FAR)["rows"]
    if not any(row["kind"] == "int4, Marlin" for row in rows):
        assert choices.int4_at(8) == pytest.approx(2.45, abs=0.1)


def test_what_the_package_knows_of_quality_is_what_was_measured():
    with TABLE.open() as file:
        assert [dict(row) for row in csv.DictReader(file)] == known_quality.table()
