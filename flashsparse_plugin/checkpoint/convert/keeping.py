# SPDX-License-Identifier: Apache-2.0
"""Converting what another tool quantized: its codes are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...config import FlashSparseConfig, LayerConfig
from ...formats import get_format, read_format
from ...formats.values.quantization import packs_codes
from ...names import AUTO, DEFAULT_FORMAT, DENSE
from ..files.headers import TensorInfo
from ..foreign import packing
from ..foreign.code_entries import CodesInfo
from ..foreign.packing import NOT_QUANTIZED, scheme_of
from ..read.directory import ModelDirectory
from ..read.linears import Linear


def target_of(
    directory: ModelDirectory, format: str | None, options: Mapping[str, Any] | None
) -> tuple[str, Mapping[str, Any]]:
    """The format and its options to convert a model to, of what the user left open.

    Args:
        directory: The model.
        format: What is asked for; None: the format that holds its codes, or the default one. To
            choose one of a quantized model means to keep its codes, too.
        options: What is asked for.

    Raises:
        FormatError: For a short name of a format that options contradict.
    """
    if format is not None:
        format, options = read_format(format, options)
    if not directory.has_codes:
        return format or DEFAULT_FORMAT, options or {}
    named = None if format == AUTO else format
    if named is not None and not packs_codes(get_format(named)):
        return named, options or {}
    own, options = packing.target_of(directory.quantization or {}, named, options)
    return own.name, options


def keep_codes(
    config: FlashSparseConfig, linears: Iterable[Linear], tensors: Mapping[str, TensorInfo]
) -> None:
    """Configures quantized layers to keep their codes, and all others to stay dense.

    Changes nothing where there are none, or for a format without codes: that packs their products
    with the scales.

    Args:
        config: How to pack; is changed.
        linears: The linear layers of the model.
        tensors: The entries of all tensors.

    Raises:
        FormatError: For options that contradict the codes.
    """
    codes = [info.codes for info in tensors.values() if isinstance(info, CodesInfo)]
    format = get_format(config.format)
    if not codes or not packs_codes(format):
        return
    if not all(format.takes_codes(each.values, each.group) for each in codes):
        return
    options: dict[str, dict[str, Any]] = {}
    for linear in linears:
        info = tensors.get(f"{linear.stored}.weight")
        if config.named(*linear.names) is not None:
            continue
        if linear.expert is not None:
            config.layers[linear.expert.module] = LayerConfig(format=DENSE, reason=NOT_QUANTIZED)
        elif isinstance(info, CodesInfo) and not linear.is_transposed:
            options[linear.name] = scheme_of(format, info, config.options, info.dtype).values
        else:
            config.layers[linear.name] = LayerConfig(format=DENSE, reason=NOT_QUANTIZED)
    found = list(options.values())
    config.options = max(found, key=found.count) if found else config.options
    for name, own in options.items():
        if own != config.options:
            config.layers[name] = LayerConfig(format=config.format, options=own)
