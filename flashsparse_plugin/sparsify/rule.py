# SPDX-License-Identifier: Apache-2.0
"""The zeros that are wanted, and the format that holds them."""

from __future__ import annotations

from typing import Any

from ..formats import get_format, read_format
from ..names import AUTO, DEFAULT_FORMAT
from ..packed import FormatError


def require_rule(pattern: str | None, sparsity: float | None, format: str | None) -> None:
    """Raises FormatError where `sparsify_checkpoint` would, for what is no pattern or format."""
    rule_of(pattern, sparsity, format)


def rule_of(
    pattern: str | None, sparsity: float | None, format: str | None
) -> tuple[dict[str, Any], str]:
    """What `prune` is told of the zeros, and the format that holds them."""
    given = None if format in (None, AUTO) else _pattern_of(str(format))
    wanted = given
    if pattern is not None:
        if ":" not in pattern:
            raise FormatError(f"{pattern!r} is not a pattern N:M such as 2:4")
        wanted = _pattern_of(pattern)
    if given is not None and wanted != given:
        raise FormatError(
            f"--format {format} cannot hold --pattern {pattern}: leave one of the two out"
        )
    if wanted is None:
        return {"sparsity": 0.5 if sparsity is None else sparsity}, format or DEFAULT_FORMAT
    rule = {"sparsity": sparsity, "pattern": wanted[:2], "vector_length": wanted[2]}
    return rule, format or str(pattern)


def _pattern_of(format: str) -> tuple[int, int, int] | None:
    name, options = read_format(format)
    own = get_format(name)
    return own.pattern(own.scheme(own.dtypes[-1], options))
