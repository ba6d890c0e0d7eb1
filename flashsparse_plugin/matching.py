# SPDX-License-Identifier: Apache-2.0
"""Which modules a list of names and patterns matches, for every `ignore`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_REGEX = "re:"


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"ignore pattern {_REGEX + pattern!r} is not a regular expression: {error}"
        ) from None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether one of the patterns matches a module.

    A plain pattern is a module's name, which may be shortened from the left at a dot, and means
    that module with everything inside it: `lm_head` means `lm_head` and `model.lm_head`,
    `layers.0` means `model.layers.0.mlp.down_proj` but nothing in `layers.01`. A pattern that
    begins with `re:` is a regular expression, which must match from the beginning of the full
    name (`re.match`).

    Args:
        name: The module's full name, as in `named_modules()`.
        patterns: Names and `re:` patterns.

    Raises:
        ValueError: If a regular expression cannot be compiled, or a pattern is empty.
    """
    for pattern in patterns:
        if pattern in ("", _REGEX):
            raise ValueError(f"an empty ignore pattern ({pattern!r}) matches nothing: remove it")
        if pattern.startswith(_REGEX):
            if _compiled(pattern.removeprefix(_REGEX)).match(name):
                return True
        elif f".{pattern}." in f".{name}.":
            return True
    return False
