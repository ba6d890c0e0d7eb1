# SPDX-License-Identifier: Apache-2.0
"""Packed layers in a checkpoint whose config.json does not know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ...formats import packed_names
from ...names import QUANT_METHOD
from .headers import CheckpointError
from .places import CONFIG

_VALUES: Final = "weight_packed"
_SHARED: Final = {_VALUES, "weight_scale"}  # of our tensors: compressed-tensors has them, too


def refuse_unmarked(
    names: Iterable[str],
    quantization: Mapping[str, Any] | None,
    path: Path,
    sealed: Iterable[str] = (),
) -> None:
    """Raises CheckpointError for packed layers of which config.json does not know.

    Whoever loads by that config would leave them out, and run on random weights instead. One tensor
    of a layer is enough, whatever became of the others.

    Args:
        names: Names of all tensors.
        quantization: The quantization_config, if any.
        path: Where they are, for the message.
        sealed: Names of those that have a checksum of ours.

    Raises:
        CheckpointError: For a layer with a tensor that only flashsparse writes.
    """
    method = None if quantization is None else quantization.get("quant_method")
    if method == QUANT_METHOD:
        return
    names, sealed = list(names), set(sealed)
    parts: dict[str, set[str]] = {}
    for name in names:
        layer, _, own = name.rpartition(".")
        parts.setdefault(layer, set()).add(own)
    for layer, tensors in packed_names(names).items():
        # Other tools have a weight_packed, too, and beside it always a scale of that weight.
        foreign = tensors.keys() <= _SHARED and parts[layer] - {_VALUES, "bias"}
        if quantization is None or not foreign or sealed & set(tensors.values()):
            told = "has no quantization_config of flashsparse"
            if quantization is not None:
                told = f"has the quant_method {method!r}"
            raise CheckpointError(
                f"layer {layer!r} of {path} is packed by flashsparse, and its {CONFIG} {told}: "
                "restore the quantization_config that `flashsparse convert` wrote, or convert the "
                "dense model again"
            )
