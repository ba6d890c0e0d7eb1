# SPDX-License-Identifier: Apache-2.0
"""A result file gives back what was written."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import _results
import pytest

ROOT = Path(__file__).parents[2]


def test_what_was_written_is_read(tmp_path):
    about = {
        "gpu": "NVIDIA H200",
        "cuda": "13.0",
        "minutes": 4.0,
        "runs": {"none": {"log": ["# a"]}},
    }
    rows = [
        {"shape": "4x4", "tokens": 1, "us": 1e-07, "ratio": 1.0, "note": "a, b"},
        {"shape": "4x4", "tokens": -2, "us": 54.28, "csr_us": 3.5},
    ]
    path = tmp_path / "new" / "result.csv"
    _results.write(path, about, rows)
    assert _results.read(path) == {"about": about, "rows": rows}
    assert [type(value) for value in _results.read(path)["rows"][0].values()] == [
        *(str, int, float, float, str)
    ]


def test_a_missing_figure_is_not_in_its_row(tmp_path):
    _results.write(tmp_path / "result.csv", {}, [{"a": None, "b": 1}])
    assert _results.read(tmp_path / "result.csv")["rows"] == [{"b": 1}]


def test_without_rows_the_conditions_are_kept(tmp_path):
    _results.write(tmp_path / "result.csv", {"gpu": "x"}, [])
    assert _results.read(tmp_path / "result.csv") == {"about": {"gpu": "x"}, "rows": []}


def test_the_folder_of_a_machine():
    assert _results.folder_of("NVIDIA H100 80GB HBM3").name == "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize("path", sorted(_results.FOLDER.glob("*/*.csv")), ids=lambda p: p.stem)
def test_committed_results_say_when_and_where(path):
    result = _results.read(path)
    for row in result["rows"]:  # of a run that went on another day, or elsewhere, each says so
        of = result["about"] | {name: value for name, value in row.items() if value}
        assert of["date"] and (of.get("gpu") or of["cpu"])
    comments = len(result["about"])
    lines = path.read_text().splitlines()
    assert len(result["rows"]) == len(list(csv.reader(lines[comments:]))) - 1 > 0


def test_each_result_is_read():
    """By a table or a link of a page, by a test, or by what makes tables and pictures that ship."""
    pages = "".join(p.read_text() for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    programs = [p for name in ("tests", "benchmarks") for p in (ROOT / name).rglob("*.py")]
    sources = [p.read_text() for p in programs]

    def is_read(path: Path) -> bool:
        quoted = re.compile(rf'"([^"]*/)?{re.escape(path.stem)}(\.csv)?"')
        return f"results/{path.relative_to(_results.FOLDER).as_posix()}" in pages or any(
            path.parent.name in source and quoted.search(source) for source in sources
        )

    committed = [path for path in _results.FOLDER.rglob("*") if path.is_file()]
    assert len(committed) > 50
    assert [path.name for path in committed if not is_read(path)] == []
