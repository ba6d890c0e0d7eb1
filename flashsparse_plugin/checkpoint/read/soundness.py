# SPDX-License-Identifier: Apache-2.0
"""Proves that the files of a model hold whole weights, before anyone makes a model of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...config import FlashSparseConfig
from ...matching import matches
from ...packed import FormatError, PackedWeight
from ..files.checksums import verify
from ..files.headers import CheckpointError, TensorInfo
from ..foreign.entries import ForeignTensorInfo
from .directory import ModelDirectory
from .linears import Linear, StoredModel

logger = logging.getLogger(__name__)

_REMEDY = "fetch it again, or convert the model anew with `flashsparse convert`"


def check_packed(directory: ModelDirectory, config: FlashSparseConfig) -> int:
    """Reads every packed layer of a model directory once and validates it.

    Args:
        directory: The directory.
        config: The quantization_config of the checkpoint.

    Returns:
        How many packed layers there are.

    Raises:
        CheckpointError: For the first thing that is wrong.
    """
    packed, stored = directory.packed_layers(), _stored_model(directory)
    if stored is not None:
        _refuse_missing(stored, config)
    linears = {linear.stored: linear for linear in stored.linears} if stored else {}
    for name, tensors in packed.items():
        _check_layer(name, tensors, linears.get(name), config)
    return len(packed)


def check_foreign(directory: ModelDirectory) -> None:
    """Proves that the tensors of another tool's layout are weights.

    Args:
        directory: The directory.

    Raises:
        CheckpointError: For the first thing that is wrong.
    """
    for info in directory.tensors.values():
        if isinstance(info, ForeignTensorInfo):
            info.check()


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
    for name in stored.missing():
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
        names = [name] if linear is None else [*linear.names, name]
        scheme = config.scheme_of(*names)
        listed = config.named(*names) is not None
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
