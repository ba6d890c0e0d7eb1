# SPDX-License-Identifier: Apache-2.0
"""Proves a packed checkpoint sound in the front end, before any other process is started.

Every worker validates what it reads, whatever happened here. But a worker's error drowns in the
tracebacks of the processes around it, and comes late; this one is the last thing the user sees.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.checkpoint.read.soundness import check_foreign, check_packed
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.messages import PrintableMessage

from .codes import directory_of, take
from .folder import folder_of
from .settings import settings_of

logger = logging.getLogger("vllm.flashsparse")


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
        check_directory(*take(stored, settings, vllm_config.model_config, folder))
    elif isinstance(stored, FlashSparseConfig):
        check_checkpoint(folder, stored)
    else:
        with _as_damage():
            check_foreign(ModelDirectory(folder))


def check_checkpoint(path: str | Path, config: FlashSparseConfig) -> None:
    """Reads every packed layer of a model directory once and validates it.

    Args:
        path: The directory.
        config: The quantization_config of the checkpoint.

    Raises:
        DamagedCheckpointError: For the first thing that is wrong.
    """
    with _as_damage():
        directory = ModelDirectory(path)
    check_directory(directory, config)


def check_directory(directory: ModelDirectory, config: FlashSparseConfig) -> None:
    """`check_checkpoint` of a directory that is open already."""
    start = time.perf_counter()
    with _as_damage():
        count = check_packed(directory, config)
    seconds = time.perf_counter() - start
    logger.info("checked %d packed layers of %s in %.1f s", count, directory.path, seconds)


@contextmanager
def _as_damage() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise DamagedCheckpointError(str(error)) from None


@cache
def packed_layers(path: Path | None) -> frozenset[str]:
    """Names of the packed layers of a checkpoint; none where there is no directory of it."""
    if path is None:
        return frozenset()
    try:
        return frozenset(directory_of(path).packed_layers())
    except CheckpointError:
        return frozenset()  # other loaders read other files, and say what is wrong with them
