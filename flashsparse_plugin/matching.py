# SPDX-License-Identifier: Apache-2.0
"""Which modules a list of names and patterns matches, for every `ignore`.

The list of a checkpoint's config.json comes from anyone, so its regular expressions are RE2's: they
match in time linear in the name, whatever the pattern is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import re2

_REGEX = "re:"
_MAX_EXPRESSIONS = 256  # of a list
_MAX_BYTES = 1 << 20  # of all of them, compiled


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MAX_BYTES
    options.log_errors = False  # RE2 would write to stderr what the exception says
    return options


_OPTIONS = _options()


def _compile(pattern: str, shown: str) -> re2._Regexp:
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise ValueError(
            f"ignore pattern {shown} is not a regular expression of RE2 ({reason}). RE2 has no "
            "lookaround and no backreference: name the layers, or write it without"
        ) from None


@lru_cache(maxsize=256)
def _split(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], re2._Regexp | None]:
    """The names of a list, each between dots, and its regular expressions as one."""
    names, expressions = [], []
    for pattern in patterns:
        if pattern in ("", _REGEX):
            raise ValueError(f"an empty ignore pattern ({pattern!r}) matches nothing: remove it")
        if pattern.startswith(_REGEX):
            expressions.append(pattern.removeprefix(_REGEX))
            _compile(expressions[-1], repr(pattern))
            if len(expressions) > _MAX_EXPRESSIONS:
                raise ValueError(f"ignore has more than {_MAX_EXPRESSIONS} regular expressions")
        else:
            names.append(f".{pattern}.")
    if not expressions:
        return tuple(names), None
    return tuple(names), _compile(
        "|".join(f"(?:{expression})" for expression in expressions),
        f"list of {len(expressions)} expressions, taken together,",
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether one of the patterns matches a module.

    A plain pattern is a module's name, which may be shortened from the left at a dot, and means
    that module with everything inside it: `lm_head` means `lm_head` and `model.lm_head`,
    `layers.0` means `model.layers.0.mlp.down_proj` but nothing in `layers.01`. A pattern that
    begins with `re:` is a regular expression in RE2's syntax, which must match from the beginning
    of the full name.

    Args:
        name: The module's full name, as in `named_modules()`.
        patterns: Names and `re:` patterns.

    Raises:
        ValueError: If a regular expression cannot be compiled, or a pattern is empty.
    """
    names, expression = _split(tuple(patterns))
    dotted = f".{name}."
    if any(each in dotted for each in names):
        return True
    return expression is not None and expression.match(name) is not None
