# SPDX-License-Identifier: Apache-2.0
"""The cache directory, where one process leaves files for another."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CACHE = "FLASHSPARSE_CACHE"


def cache_directory() -> Path:
    """Returns FLASHSPARSE_CACHE, or our folder in the user's cache directory."""
    if found := os.environ.get(CACHE):
        return Path(found).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashsparse"


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
