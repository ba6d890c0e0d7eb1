# SPDX-License-Identifier: Apache-2.0
"""The benchmark of recovery on a GPU, without one."""

import sys

import _results
import recover as program


def test_a_toy_run_recovers_by_both_methods_and_by_the_command(tmp_path, monkeypatch):
    given = "--shape tiny --device cpu --samples 8 --length 32 --steps 4 --others 1x32 --fitted 2"
    more = f"--command-layers 1 --command-steps 4 --out {tmp_path} --disk {tmp_path}"
    monkeypatch.setattr(sys, "argv", ["recover.py", *given.split(), *more.split()])
    program.main()
    rows = _results.read(tmp_path / "recover-tiny.csv")["rows"]
    assert [row["part"] for row in rows] == ["lora", "lora", "least squares", "command"]
    assert [row["steps"] for row in rows] == [4, program.FEW, 2, 4]
    assert rows[0]["after"] < rows[0]["before"] and rows[3]["after"] <= rows[3]["before"]
    assert all(row["all_seconds"] > 0 for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["recover-tiny.csv"]
