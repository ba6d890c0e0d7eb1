# SPDX-License-Identifier: Apache-2.0
"""One file a result: a CSV of the measured rows, below comments with the conditions.

    # gpu: "NVIDIA H200"          a key and its value as JSON, a line each
    # read_gb_s: 4229
    shape,tokens,sparsity,us      then the columns, and a row a measurement
    21504x7168,8,70,54.28

An empty cell means that the row has no such entry. Spreadsheets and pandas read the rows as they
are (`pandas.read_csv(path, comment="#")`), and `read` returns the conditions, too.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
INTEGER = re.compile(r"-?\d+")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def folder_of(machine: str) -> Path:
    """The folder of results for a GPU or CPU, by its name."""
    return FOLDER / re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")


def write(path: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a result; `about` holds the conditions under which it was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        file.writelines(f"# {key}: {json.dumps(value)}\n" for key, value in about.items())
        if rows:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def read(path: Path) -> dict[str, Any]:
    """Reads what `write` wrote.

    Returns:
        "about": the conditions; "rows": the measurements, each without the figures it does not
        have. Cells that are spelled like a number are numbers, all others are text.
    """
    lines = path.read_text().splitlines()
    comments = list(itertools.takewhile(lambda line: line.startswith("# "), lines))
    about = {}
    for line in comments:
        key, _, value = line.removeprefix("# ").partition(": ")
        about[key] = json.loads(value)
    rows = [
        {key: _value(cell) for key, cell in row.items() if cell}
        for row in csv.DictReader(lines[len(comments) :])
    ]
    return {"about": about, "rows": rows}


def _value(cell: str) -> int | float | str:
    if INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if NUMBER.fullmatch(cell) else cell
