# SPDX-License-Identifier: Apache-2.0
"""Reading a small file that anyone may have put where it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bounded(path: Path, most: int) -> bytes:
    """Reads a whole regular file.

    A FIFO or a device in its place is refused without waiting for what it would give.

    Args:
        path: The file; a link is followed.
        most: Bytes that it may have.

    Raises:
        OSError: For a file that cannot be opened, is no regular one, or is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} is larger than {most:,} bytes, the most that is read")
    return data
