# SPDX-License-Identifier: Apache-2.0
"""Packed formats: one folder a format, and the registry that knows them by name."""

from .registry import (
    DEFAULT_FORMAT,
    all_formats,
    find_form,
    format_names,
    get_format,
    pack,
    packed_names,
    read_format,
    register_format,
)

__all__ = [
    "DEFAULT_FORMAT",
    "all_formats",
    "find_form",
    "format_names",
    "get_format",
    "pack",
    "packed_names",
    "read_format",
    "register_format",
]
