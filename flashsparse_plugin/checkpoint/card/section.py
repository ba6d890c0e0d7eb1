# SPDX-License-Identifier: Apache-2.0
"""The part of a model card between two markers, which is written anew by whoever measures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...cache import write_whole
from ...files import read_bounded
from ...messages import printable
from ..files.headers import CheckpointError
from ..files.places import require_inside
from ..write.report import human
from ..write.surroundings import CARD

EVALUATION: Final = ("<!-- flashsparse eval -->", "<!-- end of flashsparse eval -->")
"""Lines of a card between which an evaluation puts its table."""

_MARKED = re.compile("{}.*?{}\n?".format(*map(re.escape, EVALUATION)), re.S)
_MAX_BYTES = 16 << 20

_COLUMNS = {
    "model": "model",
    "method": "method",
    "perplexity": "perplexity",
    "zeros": "zeros",
    "bits": "bits a weight",
    "disk_bytes": "on disk",
    "memory_bytes": "in memory",
    "prefill_tokens_s": "prefill, tokens/s",
    "decode_tokens_s": "decode, tokens/s",
}


def read_card(path: Path) -> str:
    """The text of a model's card.

    Args:
        path: The model directory.

    Raises:
        CheckpointError: Where there is none, or it is no text file inside of the directory.
    """
    if not (path / CARD).exists():
        raise CheckpointError(
            f"{path} has no {CARD} to write into: `flashsparse convert` writes one, or make an "
            "empty file of that name"
        )
    require_inside(path / CARD, path)
    try:
        return read_bounded(path / CARD, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path / CARD} cannot be read as text: {error}") from None


def evaluation(text: str = "Not evaluated yet.") -> str:
    """The section of a card that tells how good and how fast the model is."""
    begin, end = EVALUATION
    return f"{begin}\n## Evaluation\n\n{text}\n{end}"


def write_evaluation(path: Path, lines: Sequence[Mapping[str, Any]], about: str) -> None:
    """Puts a table into a model's card: in the place of the last one, or else at the end.

    Args:
        path: The model directory.
        lines: What was measured, by name; a table's columns are what any line has.
        about: The conditions, a sentence or two.

    Raises:
        CheckpointError: As `read_card` does.
    """
    text = read_card(path)
    section = evaluation(f"{_table(lines)}\n{_cell(about)}") + "\n"
    if _MARKED.search(text):
        text = _MARKED.sub(lambda _: section, text, count=1)
    else:
        text = f"{text.rstrip()}\n\n{section}"
    write_whole(path / CARD, text)


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    told = {key for line in lines for key in line}
    tasks = [key for line in lines for key in line if key not in (*_COLUMNS, "kind", "ran")]
    columns = {key: head for key, head in _COLUMNS.items() if key in told}
    columns |= {key: key for key in tasks}
    rows = [columns.values(), ["---", "---", *["---:"] * (len(columns) - 2)]]
    rows += [[_shown(key, line.get(key, "")) for key in columns] for line in lines]
    return "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _shown(key: str, value: Any) -> str:
    if value == "" or isinstance(value, str):
        return str(value)
    if key.endswith("_bytes"):
        return human(value)
    return f"{value:.1%}" if key == "zeros" else f"{value:,.4g}"


def _cell(text: str) -> str:
    """Text of unknown origin, such as the name of a folder, as a cell of a table."""
    return re.sub(r"([|<>\[\]`\\])", r"\\\1", printable(text).replace("\n", " "))
