# SPDX-License-Identifier: Apache-2.0
"""The cache directory, where one process leaves files for another."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = "FLASHSPARSE_CACHE"


def cache_directory() -> Path:
    """Returns FLASHSPARSE_CACHE, or our folder in the user's cache directory."""
    if found := os.environ.get(CACHE):
        return Path(found).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashsparse"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits until no other process has locked a directory, which is made where it is not there.

    For whoever reads a file, changes what it says and writes it again. Readers need no lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)  # which unlocks it


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
