# SPDX-License-Identifier: Apache-2.0
"""The shapes that kernels of nm_gather are compiled in, as their headers list them."""

from __future__ import annotations

import re
from pathlib import Path

from flashsparse_plugin.formats.pattern.options import PatternOptions

_LIST = re.compile(r"^#define FS_NM_\w+_SHAPES(?:_(\d+))?\(X\)((?: *\\\n +X\([^)]*\))+)", re.M)
_SHAPE = re.compile(r"X\(([^)]*)\)")


def read_shapes(header: Path) -> list[tuple[int, ...]]:
    """Index, bits of a value, and the numbers of each X(...), in the order in which ops count."""
    shapes = [
        (int(bits or 16), *map(int, numbers.split(",")))
        for bits, listed in _LIST.findall(header.read_text())
        for numbers in _SHAPE.findall(listed)
    ]
    return [(index, *shape) for index, shape in enumerate(shapes)]


def bits_of(options: PatternOptions) -> int:
    """Bits of a value of this type."""
    return options.value_type.bits if options.value_type else 16
