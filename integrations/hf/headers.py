# SPDX-License-Identifier: Apache-2.0
"""The headers of a model's safetensors files, read by our own rules and not by transformers'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flashsparse_plugin.checkpoint.reader import TensorInfo, as_dense, require_inside
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


def _home(model: PreTrainedModel, files: list[Path]) -> Path:
    """The directory that a model is loaded from: the user's, or a snapshot in the Hub's cache."""
    named = Path(model.config.name_or_path or "")
    return files[0].parent if files and not named.is_dir() else named
