# SPDX-License-Identifier: Apache-2.0
"""Proves a packed checkpoint sound in the front end, before any other process is started.

Every worker validates what it reads, whatever happened here. But a worker's error drowns in the
tracebacks of the processes around it, and comes late; this one is the last thing the user sees.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory, TensorInfo
from flashsparse_plugin.checkpoint.checksums import verify
from flashsparse_plugin.checkpoint.foreign.entries import ForeignTensorInfo
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.checkpoint.linears import Linear, StoredModel
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats import packed_names
from flashsparse_plugin.matching import matches
from flashsparse_plugin.messages import PrintableMessage
from flashsparse_plugin.packed import FormatError, PackedWeight

from .codes import directory_of, take
from .folder import folder_of
from .settings import settings_of

logger = logging.getLogger("vllm.flashsparse")

_REMEDY = "fetch it again, or convert the model anew with `flashsparse convert`"


class DamagedCheckpointError(PrintableMessage, RuntimeError):
    """A packed checkpoint that cannot be served; the message names file, layer and rule.

    Not a ValueError, for the same reason as SettingsError.
    """


def check_files(vllm_config: Any) -> None:
    """Refuses a damaged checkpoint before any other process is started.

    Raises:
        DamagedCheckpointError: For the first thing that is wrong.
    """
    stored = getattr(vllm_config.quant_config, "stored", None)
    packed = isinstance(stored, FlashSparseConfig)
    foreign = bool(getattr(vllm_config.quant_config, "foreign", False))
    if multiprocessing.parent_process() is not None or not (packed or foreign):
        return
    folder = folder_of(vllm_config.model_config, vllm_config.load_config)
    if folder is None:
        return
    if isinstance(stored, QuantizedConfig):
        settings = settings_of(vllm_config.additional_config)
        stored = take(stored, settings, vllm_config.model_config, vllm_config.load_config)
    if isinstance(stored, FlashSparseConfig):
        check_checkpoint(folder, stored)
    else:
        check_foreign(folder)


def check_checkpoint(path: str | Path, config: FlashSparseConfig) -> None:
    """Reads every packed layer of a model directory once and validates it.

    Args:
        path: The directory.
        config: The quantization_config of the checkpoint.

    Raises:
        DamagedCheckpointError: For the first thing that is wrong.
    """
    start = time.perf_counter()
    try:
        directory = directory_of(Path(path))
        packed = _packed_layers(directory)
        stored = _stored_model(directory)
        if stored is not None:
            _refuse_missing(stored, config)
        linears = {linear.stored: linear for linear in stored.linears} if stored else {}
        for name, tensors in packed.items():
            _check_layer(name, tensors, linears.get(name), config)
    except CheckpointError as error:
        raise DamagedCheckpointError(str(error)) from None
    logger.info(
        "checked %d packed layers of %s in %.1f s", len(packed), path, time.perf_counter() - start
    )


def check_foreign(path: str | Path) -> None:
    """Proves that the tensors of another tool's layout are weights.

    Args:
        path: The model directory.

    Raises:
        DamagedCheckpointError: For the first thing that is wrong.
    """
    try:
        for info in ModelDirectory(path).tensors.values():
            if isinstance(info, ForeignTensorInfo):
                info.check()
    except CheckpointError as error:
        raise DamagedCheckpointError(str(error)) from None


@cache
def packed_layers(path: Path | None) -> frozenset[str]:
    """Names of the packed layers of a checkpoint; none where there is no directory of it."""
    if path is None:
        return frozenset()
    try:
        return frozenset(_packed_layers(directory_of(path)))
    except CheckpointError:
        return frozenset()  # other loaders read other files, and say what is wrong with them


def _packed_layers(directory: ModelDirectory) -> dict[str, dict[str, TensorInfo]]:
    return {
        layer: {own: directory.tensors[name] for own, name in named.items()}
        for layer, named in packed_names(directory.tensors).items()
    }


def _stored_model(directory: ModelDirectory) -> StoredModel | None:
    """The directory as transformers sees it; None where it does not know the model."""
    try:
        return StoredModel(directory)
    except CheckpointError as error:
        if error.__cause__ is None:
            raise
        logger.debug("shapes of layers are left to the workers to check: %s", error)
        return None
    except FormatError as error:
        raise CheckpointError(f"{directory.path}: {error}") from None


def _refuse_missing(stored: StoredModel, config: FlashSparseConfig) -> None:
    shapes = {linear.name: list(linear.shape) for linear in stored.linears}
    for name in stored.checkpoint.missing(stored.model):
        if not matches(name, config.ignore):
            raise CheckpointError(
                f"layer {name!r} {shapes[name]} is in no file of {stored.directory.path}, neither "
                f"packed nor dense. The checkpoint is incomplete: {_REMEDY}"
            )


def _check_layer(
    name: str,
    tensors: Mapping[str, TensorInfo],
    linear: Linear | None,
    config: FlashSparseConfig,
) -> None:
    files = ", ".join(sorted({str(info.path) for info in tensors.values()}))
    try:
        names = [name] if linear is None else [linear.name, name]
        scheme = config.scheme_of(*names)
        listed = any(each in config.layers for each in names)
        ignored = not listed and any(matches(each, config.ignore) for each in names)
        if ignored or scheme is None:
            raise FormatError(
                f"layer {name!r} is packed, and config.json calls it dense: {_REMEDY}"
            )
        if linear is not None:
            loaded = {own: info.read() for own, info in tensors.items()}
            packed = PackedWeight(scheme, linear.shape, loaded).validate(name)
            verify(name, packed, tensors)
    except CheckpointError:
        raise
    except FormatError as error:
        raise CheckpointError(f"{files}: {error}") from None
