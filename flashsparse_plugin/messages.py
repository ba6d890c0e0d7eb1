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


def one_line(text: str) -> str:
    """Returns `printable` text in which line breaks and tabs are spelt as escapes, too.

    What names in a file come into, such as a message or a line of a log, would look like two of
    them, the second of which says what the file likes.
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


class PrintableMessage(Exception):
    """An exception whose message is one line, safe to be shown whatever it quotes of a file."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, in main memory or on a GPU.

    torch has a class for a GPU without memory, but none for a CPU.
    """
    if isinstance(error, MemoryError):
        return True
    return any(part in str(error) for part in ("out of memory", "allocate memory", "bad_alloc"))


def complaint(error: ValidationError, *inside: str) -> str:
    """Returns what pydantic says first, in a sentence: the place, and what is wrong there.

    Args:
        error: What pydantic raised.
        *inside: The keys under which it found what it validated.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:100] for part in (*inside, *first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return one_line(f"{place}: {message}" if place else message)
