# SPDX-License-Identifier: Apache-2.0
"""The table of "Is it for you?" takes the H200's figures of one run, where there is one."""

from __future__ import annotations

import _results
import choices

KINDS = [kind for kinds in choices.KINDS.values() for kind in kinds]


def test_without_far_figures_those_of_each_kernels_run_are_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(choices, "FAR", tmp_path / "far.csv")
    table = choices.choices()
    assert {len(row) for row in table} == {len(choices.heads())} == {5}
    assert {row[0] for row in table} == {name for name in choices.KINDS if "kernel" not in name}


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
    assert {len(row) for row in table.values()} == {len(heads)} == {6}
    assert table["2:4"][1:3] == ["1.5 to 2.0", "3.0"]
    assert table["none"][1] == "fp8: 1.5 to 2.0; 1.5 to 2.0 with a kernel that quantizes x"
