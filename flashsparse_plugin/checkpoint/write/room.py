# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or must not be written: noticed before the work, or explained after it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files.headers import CheckpointError
from .report import human

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def require_room(out: Path, nbytes: int = 0) -> None:
    """Raises CheckpointError where a directory of so many bytes could not be made.

    Args:
        out: The directory.
        nbytes: What will be written.
    """
    place = out.resolve().parent
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise CheckpointError(_read_only(place))
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise CheckpointError(
            f"there is no space for {out}: it needs {human(nbytes)}, and {human(free)} are free in "
            f"{place}. Make room, or choose another output"
        )


@contextmanager
def disk_errors(path: Path, remedy: Callable[[], str]) -> Iterator[None]:
    """Turns errors of a disk into sentences.

    Args:
        path: The directory that is written.
        remedy: What to say of one that is full.

    Raises:
        CheckpointError: For a disk that is full, or must not be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            why = "" if error.errno == errno.ENOSPC else f" ({error.strerror})"
            raise CheckpointError(f"there is no space left for {path}{why}{remedy()}") from None
        if error.errno in _READ_ONLY:
            raise CheckpointError(_read_only(Path(error.filename or path))) from None
        raise


def _read_only(place: Path) -> str:
    return f"{place} must not be written by this user: choose another output"
