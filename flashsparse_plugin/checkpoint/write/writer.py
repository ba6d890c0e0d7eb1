# SPDX-License-Identifier: Apache-2.0
"""ShardWriter: one safetensors file, written tensor by tensor.

`safetensors.torch.save_file` needs every tensor of a file in memory at once. Here the file starts
with space for the header, which the format allows to be padded with spaces, and each tensor is
written as soon as it is available.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ..files.headers import CHECKSUM, DTYPES, CheckpointError, as_bytes

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_ALIGNMENT = 8  # bytes: the size of the largest dtype, to which the header's length is rounded


class ShardWriter:
    """Writes one safetensors file.

    Args:
        path: The file.
        names: All tensor names that may be added, for the size of the header.
    """

    def __init__(self, path: Path, names: Iterable[str]):
        self.path = path
        # An entry is the name and at most 150 characters: dtype, shape, two offsets, punctuation; a
        # checksum the name and its digits.
        room = 64 + sum(2 * len(json.dumps(name)) + len(CHECKSUM) + 170 for name in names)
        self._room = -(-room // _ALIGNMENT) * _ALIGNMENT
        self._metadata = {"format": "pt"}
        self._entries: dict[str, object] = {"__metadata__": self._metadata}
        self._odd: list[tuple[str, torch.dtype, tuple[int, ...], bytes]] = []
        self._digest = hashlib.sha256()
        self.nbytes = 0
        self._file = io.BufferedWriter(io.FileIO(path, "w"))
        self._file.seek(8 + self._room)

    def add(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        parts: Iterable[Tensor],
        checksum: str | None = None,
    ) -> None:
        """Adds a tensor in parts, in memory order, and its checksum where it has one.

        A tensor whose size would leave the next one unaligned is kept in memory until the end of
        the file; such tensors are small (biases, offsets).
        """
        size = math.prod(shape) * dtype.itemsize
        self.nbytes += size
        if checksum is not None:
            self._metadata[CHECKSUM + name] = checksum
        if size % _ALIGNMENT:
            self._odd.append((name, dtype, shape, b"".join(as_bytes(part) for part in parts)))
        else:
            self._write(name, dtype, shape, (as_bytes(part) for part in parts))

    def close(self) -> str:
        """Completes the file and returns its digest (see `digest_of`)."""
        for name, dtype, shape, data in sorted(
            self._odd, key=lambda odd: (-odd[1].itemsize, odd[0])
        ):
            self._write(name, dtype, shape, [data])
        header = json.dumps(self._entries, separators=(",", ":")).encode()
        if len(header) > self._room:
            raise CheckpointError(f"{self.path}: tensors of that many dimensions are not supported")
        header = header.ljust(self._room)
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + header)
        self._file.close()
        self._digest.update(header)
        return self._digest.hexdigest()

    def abort(self) -> None:
        self._file.close()

    def _write(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        parts: Iterable[memoryview | bytes],
    ) -> None:
        start = self._file.tell() - 8 - self._room
        for part in parts:
            self._file.write(part)
            self._digest.update(part)
        end = self._file.tell() - 8 - self._room
        self._entries[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }


def digest_of(path: Path) -> str:
    """SHA-256 of a file's tensors and then its header, which is the order of writing."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            return ""
        header = file.read(length)
        while part := file.read(1 << 24):
            digest.update(part)
    digest.update(header)
    return digest.hexdigest()
