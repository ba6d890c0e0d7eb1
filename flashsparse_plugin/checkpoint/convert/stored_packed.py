# SPDX-License-Identifier: Apache-2.0
"""Reading the layers of a packed model directory, one at a time."""

from __future__ import annotations

from collections.abc import Mapping

from ...config import FlashSparseConfig
from ...packed import FormatError, PackedWeight
from ..files.checksums import verify
from ..files.headers import CheckpointError
from ..read.directory import ModelDirectory
from ..read.linears import Linear


def packed_config(directory: ModelDirectory) -> FlashSparseConfig | None:
    """How a model is packed; None for a dense one.

    Raises:
        CheckpointError: For a quantization_config that is not valid.
    """
    quantization = directory.quantization
    if quantization is None:
        return None
    try:
        config = FlashSparseConfig(**quantization)
    except FormatError as error:
        raise CheckpointError(
            f"quantization_config of {directory.path} is not valid: {error}"
        ) from None
    config.refuse_open(f"config.json of {directory.path}")
    return config


def read_packed(
    directory: ModelDirectory,
    named: Mapping[str, str],
    linear: Linear,
    config: FlashSparseConfig | None,
) -> PackedWeight:
    """Reads a packed layer, validates it and compares its checksums.

    Args:
        directory: The model.
        named: The tensors of the layer, by their own names.
        linear: The layer.
        config: From `packed_config`.

    Raises:
        FormatError: For a layer that is not valid.
    """
    assert linear.stored is not None  # only layers that have a weight of their own are read
    where = f"layer {linear.name!r} {list(linear.shape)}"
    scheme = None if config is None else config.scheme_of(*linear.names)
    if scheme is None:
        told = "has no quantization_config that tells how" if config is None else "calls it dense"
        raise CheckpointError(f"{where} is packed, and config.json {told}: fetch the model again")
    infos = {own: directory.tensors[name] for own, name in named.items()}
    packed = PackedWeight(scheme, linear.shape, {own: each.read() for own, each in infos.items()})
    packed.validate(linear.name)
    verify(linear.name, packed, infos)
    return packed
