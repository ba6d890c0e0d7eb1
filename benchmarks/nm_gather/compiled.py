# SPDX-License-Identifier: Apache-2.0
"""What launches of nm_gather's kernels have in common."""

from __future__ import annotations

from flashsparse_plugin.formats.pattern.options import PatternOptions


def bits_of(options: PatternOptions) -> int:
    """Bits of a value of this type."""
    return options.value_type.bits if options.value_type else 16
