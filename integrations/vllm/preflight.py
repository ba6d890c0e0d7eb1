# SPDX-License-Identifier: Apache-2.0
"""Proves a packed checkpoint sound in the front end, before any other process is started.

Every worker validates what it reads, whatever happened here. But a worker's error drowns in the
tracebacks of the processes around it, and comes late; this one is the last thing the user sees.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory, TensorInfo
from flashsparse_plugin.checkpoint.checksums import verify
from flashsparse_plugin.checkpoint.linears import Linear, find_linears
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats import packed_names
from flashsparse_plugin.matching import matches
from flashsparse_plugin.messages import PrintableMessage
from flashsparse_plugin.packed import FormatError, PackedWeight

logger = logging.getLogger("vllm.flashsparse")

_REMEDY = "fetch it again, or convert the model anew with `flashsparse convert`"


class DamagedCheckpointError(PrintableMessage, RuntimeError):
    """A packed checkpoint that cannot be served; the message names file, layer and rule.

    Not a ValueError, for the same reason as SettingsError.
    """


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
        directory = ModelDirectory(path)
        packed = _packed_layers(directory)
        linears = _linears(directory)
        for linear in linears or []:
            # Where transformers calls a layer otherwise than the file, it is the head.
            optional = linear.tied_to is not None or matches(linear.name, config.ignore)
            if linear.stored is None and not optional:
                raise CheckpointError(
                    f"layer {linear.name!r} {list(linear.shape)} is in no file of {path}, neither "
                    f"packed nor dense. The checkpoint is incomplete: {_REMEDY}"
                )
        shapes = {linear.stored: linear.shape for linear in linears or []}
        for name, tensors in packed.items():
            _check_layer(name, tensors, shapes.get(name), config)
    except CheckpointError as error:
        raise DamagedCheckpointError(str(error)) from None
    logger.info(
        "checked %d packed layers of %s in %.1f s", len(packed), path, time.perf_counter() - start
    )


@cache
def packed_layers(path: str) -> frozenset[str]:
    """Names of the packed layers of a checkpoint; none where it is no local directory."""
    try:
        return frozenset(_packed_layers(ModelDirectory(path)))
    except CheckpointError:
        return frozenset()  # other loaders read other files, and say what is wrong with them


def _packed_layers(directory: ModelDirectory) -> dict[str, dict[str, TensorInfo]]:
    return {
        layer: {own: directory.tensors[name] for own, name in named.items()}
        for layer, named in packed_names(directory.tensors).items()
    }


def _linears(directory: ModelDirectory) -> list[Linear] | None:
    """The layers that the model should have; None where transformers does not know the model."""
    try:
        return find_linears(directory)
    except CheckpointError as error:
        if error.__cause__ is None:
            raise
        logger.debug("shapes of layers are left to the workers to check: %s", error)
        return None


def _check_layer(
    name: str,
    tensors: Mapping[str, TensorInfo],
    shape: tuple[int, int] | None,
    config: FlashSparseConfig,
) -> None:
    files = ", ".join(sorted({str(info.path) for info in tensors.values()}))
    try:
        scheme = config.scheme_of(name)
        ignored = name not in config.layers and matches(name, config.ignore)
        if ignored or scheme is None:
            raise FormatError(
                f"layer {name!r} is packed, and config.json calls it dense: {_REMEDY}"
            )
        if shape is not None:
            loaded = {own: info.read() for own, info in tensors.items()}
            packed = PackedWeight(scheme, shape, loaded).validate(name)
            verify(name, packed, tensors)
    except CheckpointError:
        raise
    except FormatError as error:
        raise CheckpointError(f"{files}: {error}") from None
