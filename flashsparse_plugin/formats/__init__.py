# SPDX-License-Identifier: Apache-2.0
"""Packed formats: one file a format, and the registry that knows them by name."""

from .registry import DEFAULT_FORMAT, format_names, get_format, pack

__all__ = ["DEFAULT_FORMAT", "format_names", "get_format", "pack"]
