# SPDX-License-Identifier: Apache-2.0
"""The headers of safetensors files: what a checkpoint holds, before any tensor is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashsparse_plugin.checkpoint.reader import TensorInfo, read_header


def read_headers(files: Iterable[str]) -> dict[str, TensorInfo]:
    """The entries of all tensors of some files, by name.

    Raises:
        CheckpointError: For a file that is no whole safetensors file.
    """
    return {info.name: info for path in files for info in read_header(Path(path))}
