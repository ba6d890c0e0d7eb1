# SPDX-License-Identifier: Apache-2.0
"""What the user of `convert_checkpoint` asked for, checked before the work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...config import FlashSparseConfig
from ...formats import get_format
from ...formats.values.dtypes import parse_dtype
from ...names import AUTO, DEFAULT_FORMAT
from ...packed import FormatError, dtype_name
from ..files.headers import CheckpointError
from .values import parse_size


@dataclass(frozen=True)
class Settings:
    """How a model is to be converted.

    Attributes:
        config: How to pack which layer.
        dtype: The dtype of all matrices; None leaves each as it is.
        pack_all: Pack also those layers that get larger by it.
        max_shard_bytes: The most bytes in one output file.
        is_settled: Whether the format of each layer was chosen by its weight.
    """

    config: FlashSparseConfig
    dtype: torch.dtype | None
    pack_all: bool
    max_shard_bytes: int
    is_settled: bool = False


def settings_of(
    format: str,
    options: Mapping[str, Any] | None,
    layers: Mapping[str, Mapping[str, Any]] | None,
    dtype: torch.dtype | str | None,
    ignore: Sequence[str],
    pack_all: bool,
    max_shard_size: int | str,
    head: str | None = None,
) -> Settings:
    """Checks the arguments of `convert_checkpoint`, which describes them.

    Raises:
        FormatError: For a format, options or a dtype that there are not, and for an invalid pattern
            in `ignore`.
        CheckpointError: For an invalid size.
    """
    if format == AUTO and pack_all:
        raise FormatError(
            f'format "{AUTO}" leaves layers dense that do not pay, and pack_all (--pack-all) packs '
            "them: choose one of the two, or name a format"
        )
    chosen = get_format(DEFAULT_FORMAT if format == AUTO else format)
    wanted = None if dtype is None else parse_dtype(dtype, chosen.dtypes)
    config = FlashSparseConfig(
        format=format,
        format_version=chosen.version,
        dtype=None if wanted is None else dtype_name(wanted),
        options=dict(options or {}),
        layers={name: dict(layer) for name, layer in (layers or {}).items()},
        ignore=list(ignore),
        head=head,
    )
    config.require_pattern()
    return Settings(config, wanted, pack_all, parse_size(max_shard_size))


def refuse_overlap(source: Path, out: Path) -> None:
    """Raises CheckpointError for an output that would replace the source."""
    if out == source or source.is_relative_to(out):
        raise CheckpointError(
            f"the output {out} would replace the source {source}: choose another output"
        )
