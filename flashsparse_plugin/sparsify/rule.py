# SPDX-License-Identifier: Apache-2.0
"""The zeros that are wanted, and the format that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..formats import get_format, read_format
from ..names import AUTO, DEFAULT_FORMAT
from ..packed import FormatError


def require_rule(
    pattern: str | None,
    sparsity: float | None,
    format: str | None,
    options: Mapping[str, Any],
) -> None:
    """Raises FormatError where `sparsify_checkpoint` would, for what is no pattern or format."""
    rule_of(pattern, sparsity, format, options)


def rule_of(
    pattern: str | None,
    sparsity: float | None,
    format: str | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], str]:
    """What `prune` is told of the zeros, and the format that holds them."""
    if pattern is not None and ":" not in pattern:
        raise FormatError(f"{pattern!r} is not a pattern N:M such as 2:4")
    packing = format or pattern or DEFAULT_FORMAT
    if packing == AUTO and options:
        raise FormatError("auto chooses formats and their options: leave --option out, or name one")
    held = None if packing == AUTO else _pattern_of(packing, options)
    wanted = held if format is None or pattern is None else _pattern_of(pattern, {})
    if held is not None and wanted != held:
        raise FormatError(
            f"--format {format} cannot hold --pattern {pattern}: leave one of the two out"
        )
    if wanted is None:
        return {"sparsity": 0.5 if sparsity is None else sparsity}, packing
    rule = {"sparsity": sparsity, "pattern": wanted[:2], "vector_length": wanted[2]}
    return rule, packing


def _pattern_of(format: str, options: Mapping[str, Any]) -> tuple[int, int, int] | None:
    name, options = read_format(format, options)
    own = get_format(name)
    return own.pattern(own.scheme(own.dtypes[-1], options))
