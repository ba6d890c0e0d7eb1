# SPDX-License-Identifier: Apache-2.0
"""The headers of a model's safetensors files, read by our own rules and not by transformers'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flashsparse_plugin.checkpoint.reader import (
    TensorInfo,
    as_dense,
    require_inside,
    shards_in,
)
from flashsparse_plugin.checkpoint.reader import read_headers as read

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


def read_headers(model: PreTrainedModel, files: Iterable[str]) -> dict[str, TensorInfo]:
    """The entries of all tensors of the files that a model is loaded from, weights as dense ones.

    Raises:
        CheckpointError: For a file outside of the model's directory, one that is no whole
            safetensors file, and tensors of another tool's layout that are no whole weight.
    """
    paths = [Path(file) for file in files]
    home = _home(model, paths)
    for path in paths:
        require_inside(path, home)
    return as_dense(read(paths), home)


def refuse_odd_files(name_or_path: str | None) -> None:
    """Looks at the files of a local directory before transformers opens any.

    Where the dtype is "auto" and config.json has none, transformers opens the first file before it
    asks a quantizer for anything, and a FIFO would keep it waiting.

    Raises:
        CheckpointError: For a file outside of the directory, or one that is no regular file.
    """
    home = Path(name_or_path or "")
    if name_or_path and home.is_dir():
        for path in shards_in(home):
            require_inside(path, home)


def _home(model: PreTrainedModel, files: list[Path]) -> Path:
    """The directory that a model is loaded from: the user's, or a snapshot in the Hub's cache."""
    named = Path(model.config.name_or_path or "")
    return files[0].parent if files and not named.is_dir() else named
