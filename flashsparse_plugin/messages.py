# SPDX-License-Identifier: Apache-2.0
"""Text of unknown origin, made fit for a terminal, a log or a sentence."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_KEPT = "\n\t\u200c\u200d"  # line and tab; the joiners that Persian, Hindi and emoji need
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format (bidi), surrogates, line, paragraph


def printable(text: str) -> str:
    """Returns text in which every character that a terminal would obey is spelt as an escape.

    Names in a checkpoint, and what a model says, may hold control sequences that move the cursor,
    set the clipboard or reorder what is shown.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1] if each not in _KEPT and unicodedata.category(each) in _UNSAFE else each
        for each in text
    )


def complaint(error: ValidationError) -> str:
    """Returns what pydantic says first, in a sentence: the place, and what is wrong there."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:100] for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return printable(f"{place}: {message}" if place else message)
