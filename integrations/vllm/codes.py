# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that another tool quantized are served as packed ones.

Which tensors they would then have is known from their headers. What vLLM reads of a layer is packed
as soon as all of its tensors are there, and goes on as any packed layer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory
from flashsparse_plugin.checkpoint.foreign.code_entries import PackedInfo
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.names import AUTO
from flashsparse_plugin.packed import FormatError

from .settings import METHOD, NONE, SettingsError

_taken: dict[Path, ModelDirectory] = {}  # in this process


def take(
    asked: QuantizedConfig, settings: Mapping[str, Any], model_config: Any, folder: Path | None
) -> tuple[ModelDirectory, FlashSparseConfig]:
    """Takes a quantized checkpoint as a packed one.

    Args:
        asked: Its own configuration.
        settings: What the user asks for.
        model_config: vLLM's.
        folder: Where its files are; None where they are not at hand.

    Returns:
        The directory as that of a packed checkpoint, and the configuration that this would have.

    Raises:
        SettingsError: For codes that are not read, and where what is asked for contradicts them.
    """
    if folder is None:
        raise SettingsError(
            f"{model_config.model} is quantized, and its files cannot be checked before loading. "
            "Download it to a local directory, and serve that"
        )
    named = {key: settings[key] for key in ("dtype", "options", "pruning") if key in settings}
    if settings.get(METHOD) not in (None, AUTO, NONE):
        named["format"] = settings[METHOD]
    try:
        given = QuantizedConfig(foreign=asked.foreign, **named)
        directory = ModelDirectory(folder).packed(given, model_config.dtype)
    except (CheckpointError, FormatError) as error:
        raise SettingsError(str(error)) from None
    _taken[folder] = directory
    return directory, FlashSparseConfig(**directory.quantization)


def directory_of(folder: Path) -> ModelDirectory:
    """A model directory, as a packed one where it was taken as such.

    Raises:
        CheckpointError: For one that cannot be read.
    """
    return _taken.get(folder) or ModelDirectory(folder)


def as_packed_tensors(
    weights: Iterable[tuple[str, Tensor]], folder: Path | None
) -> Iterable[tuple[str, Tensor]]:
    """Yields the tensors of a checkpoint as they come, packed ones in the place of codes.

    Args:
        weights: Names and tensors, in any order.
        folder: Where the checkpoint is, where that is known.
    """
    directory = None if folder is None else _taken.get(folder)
    return weights if directory is None else _packed(weights, directory)


def _packed(
    weights: Iterable[tuple[str, Tensor]], directory: ModelDirectory
) -> Iterator[tuple[str, Tensor]]:
    shown = [info for info in directory.tensors.values() if isinstance(info, PackedInfo)]
    owners = {part.name: info for info in shown for part in info.weight.parts.values()}
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights:
        info = owners.get(name)
        if info is None:
            yield name, tensor
            continue
        layer, _, part = name.rpartition(".")
        parts = waiting.setdefault(layer, {})
        parts[part] = tensor
        if parts.keys() == info.weight.parts.keys():
            packed = info.weight.pack(info.scheme, waiting.pop(layer))
            yield from ((f"{layer}.{own}", each) for own, each in packed.tensors.items())
    for layer, parts in waiting.items():
        raise CheckpointError(
            f"layer {layer!r}: the checkpoint has {', '.join(sorted(parts))} alone. Fetch it again"
        )
