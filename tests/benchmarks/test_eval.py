# SPDX-License-Identifier: Apache-2.0
"""The benchmark of whole models for one user, without a GPU."""

import sys

import _results
import eval as program
import pytest


def test_a_toy_run_has_a_line_for_each_method(tmp_path, monkeypatch):
    given = "--shape tiny --device cpu --prompt 16 --write 2 --rounds 1 --rules 2:4"
    monkeypatch.setattr(sys, "argv", ["eval.py", *given.split(), "--out", str(tmp_path)])
    program.main()
    result = _results.read(tmp_path / "eval-tiny.csv")
    found = {row["method"]: row for row in result["rows"]}
    for method, bits in {"": 9, ", fp8_e4m3": 5, ", int8": 5, ", int4 by 128": 3}.items():
        row = found[f"nm_vector(2:4{method})"]
        assert (row["rule"], row["kind"], row["zeros"]) == ("2:4", "ours", 0.5)
        assert row["bits"] == pytest.approx(bits, rel=0.05)
    for row in found.values():
        assert row["prefill_tokens_s"] > 0 and row["decode_tokens_s"] > 0 and not row["graphed"]
