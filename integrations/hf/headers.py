# SPDX-License-Identifier: Apache-2.0
"""The headers of a model's safetensors files, read by our own rules and not by transformers'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flashsparse_plugin.checkpoint.files.folder import shards_in
from flashsparse_plugin.checkpoint.files.headers import TensorInfo
from flashsparse_plugin.checkpoint.files.headers import read_headers as read
from flashsparse_plugin.checkpoint.files.places import CONFIG, require_file, require_inside
from flashsparse_plugin.checkpoint.foreign.entries import as_dense
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig, as_packed
from flashsparse_plugin.checkpoint.foreign.quantized import QuantizedTensors
from flashsparse_plugin.config import FlashSparseConfig

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


def read_headers(model: PreTrainedModel, files: Iterable[str]) -> dict[str, TensorInfo]:
    """The entries of all tensors of the files that a model is loaded from, weights as dense ones.

    Raises:
        CheckpointError: For a file outside of the model's directory, one that is no whole
            safetensors file, and tensors of another tool's layout that are no whole weight.
    """
    return as_dense(*_read(model, files))


def packed_headers(
    model: PreTrainedModel, files: Iterable[str], config: QuantizedConfig, dtype: torch.dtype
) -> tuple[dict[str, TensorInfo], FlashSparseConfig, list[str]]:
    """The same of files that another tool quantized, with packed tensors in the place of codes.

    Args:
        model: The skeleton.
        files: The files.
        config: What is asked of them.
        dtype: Of the activations.

    Returns:
        The entries, the configuration that a packed checkpoint would have, and what the user should
        know of it.

    Raises:
        CheckpointError: As `read_headers` does, and for codes that are not read.
        FormatError: Where what is asked for contradicts the codes.
    """
    infos, home = _read(model, files)
    quantized = QuantizedTensors(infos, config.foreign, home)
    tensors, settled = as_packed(quantized, dtype, config)
    return tensors, settled, quantized.notes


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
        # What `subfolder=` names is not told here; whether its files lead out is seen later.
        for config in home.glob(f"*/{CONFIG}"):
            for path in shards_in(config.parent):
                require_file(path)


def _read(model: PreTrainedModel, files: Iterable[str]) -> tuple[dict[str, TensorInfo], Path]:
    paths = [Path(file) for file in files]
    home = _home(model, paths)
    for path in paths:
        require_inside(path, home)
    return read(paths), home


def _home(model: PreTrainedModel, files: list[Path]) -> Path:
    """The directory that a model is loaded from: the user's, or a snapshot in the Hub's cache."""
    named = Path(model.config.name_or_path or "")
    return files[0].parent if files and not named.is_dir() else named
