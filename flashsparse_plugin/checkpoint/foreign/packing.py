# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that another tool quantized, taken as one that is packed: by which configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import Field

from ...config import PATTERN, FlashSparseConfig, LayerConfig
from ...formats import get_format
from ...formats.pattern.nm_vector import NMVector
from ...formats.values.dtypes import parse_dtype
from ...formats.values.quantization import packs_codes
from ...names import AUTO, DEFAULT_FORMAT, DENSE
from ...packed import Format, FormatError, Scheme, dtype_name
from ..files.headers import TensorInfo
from .code_entries import CodesInfo
from .quantization import (
    has_zeros_anywhere,
    is_quantized,
    kinds_of_codes,
    pattern_of,
    share_of_zeros,
)
from .quantized import QuantizedTensors, by_part

_HALF: Final = (torch.float16, torch.bfloat16)
_LEAST_ZEROS: Final = 0.25
"""Share of zeros anywhere from which on codes are smaller with them than without."""
NOT_QUANTIZED: Final = "not quantized in the source"


class QuantizedConfig(FlashSparseConfig):
    """What is asked of a checkpoint that another tool quantized, until its files are known.

    Attributes:
        foreign: The `quantization_config` that it has. `as_packed` makes ours of it.
    """

    foreign: dict[str, Any] = Field(exclude=True, repr=False)

    @classmethod
    def of(cls, foreign: object, given: object = None) -> QuantizedConfig | None:
        """Takes a quantized checkpoint over where the user asks, or where it says it has zeros.

        Others are left to the library that loads the model: dense ones among them.

        Args:
            foreign: The `quantization_config` of the checkpoint.
            given: The FlashSparseConfig that the user gives, if any.
        """
        asked = given if isinstance(given, FlashSparseConfig) else None
        if not isinstance(foreign, Mapping) or not is_quantized(foreign):
            return None
        gains = pattern_of(foreign) is not None or (
            _packs_anywhere(foreign) and share_of_zeros(foreign) >= _LEAST_ZEROS
        )
        if asked is None and not gains:
            return None
        named = {} if asked is None else asked.model_dump(exclude_unset=True)
        if named.get("format") == AUTO:  # means to keep its codes
            del named["format"]
        how = {} if asked is None else asked.while_loading
        return cls(**named | how, foreign=dict(foreign))

    def require_pattern(self) -> None:
        """Asks for none: the checkpoint tells of it."""


def half_dtype(*wanted: object) -> torch.dtype:
    """The first 16-bit dtype that is named, else bfloat16: codes are multiplied in 16 bits."""
    names = {dtype_name(dtype): dtype for dtype in _HALF}
    for each in wanted:
        name = dtype_name(each) if isinstance(each, torch.dtype) else each
        if isinstance(name, str) and name in names:
            return names[name]
    return torch.bfloat16


def target_of(
    quantization: Mapping[str, Any], format: str | None, given: Mapping[str, Any] | None
) -> tuple[Format, dict[str, Any]]:
    """The format that holds the codes of a checkpoint, and its options.

    The zeros to pack by are those that the user names, else the checkpoint, else 2:4.

    Args:
        quantization: Its `quantization_config`.
        format: What is asked for; None: what suits the zeros that it tells of.
        given: The options that are asked for.

    Raises:
        FormatError: For a format that holds no codes.
    """
    pattern, options = pattern_of(quantization), dict(given or {})
    if format is None:
        anywhere = pattern is None and "n" not in options and _packs_anywhere(quantization)
        format = DEFAULT_FORMAT if anywhere else NMVector.name
    own = get_format(format)
    if not packs_codes(own):
        raise FormatError(f"{format} has no codes")
    if own.Options.model_fields.keys() >= PATTERN.keys():
        named = PATTERN if pattern is None else dict(zip(PATTERN, pattern, strict=True))
        options = {**named, **options}
    return own, options


def _packs_anywhere(quantization: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has zeros without a pattern, and codes that can be packed with them."""
    own = get_format(DEFAULT_FORMAT)
    return (
        has_zeros_anywhere(quantization)
        and packs_codes(own)
        and all(own.takes_codes(*each) for each in kinds_of_codes(quantization))
    )


def scheme_of(
    format: Format, weight: CodesInfo, given: Mapping[str, Any], dtype: torch.dtype
) -> Scheme:
    """The scheme that holds a weight with its codes as they are.

    Args:
        format: The format.
        weight: The weight.
        given: Options that were asked for, the pattern among them. Of activations they count for
            more than the checkpoint.
        dtype: Of the unpacked weight.

    Raises:
        FormatError: Where the options contradict the codes, or no scheme has them.
    """
    for option in ("values", "group"):
        if option in given and given[option] != weight.options.get(option):
            raise FormatError(
                f"layer {weight.layer!r} {list(weight.shape)} is quantized, {weight.options}, and "
                f"{option}={given[option]} is asked for: codes are packed as they are. Leave the "
                "option out"
            )
    options = {"activations": weight.activations, **given, **weight.options}
    try:
        return format.scheme(dtype, options)
    except FormatError as error:
        raise FormatError(
            f"layer {weight.layer!r} {list(weight.shape)} is quantized, {weight.options}: {error}"
        ) from None


def as_packed(
    quantized: QuantizedTensors, dtype: torch.dtype, given: FlashSparseConfig | None = None
) -> tuple[dict[str, TensorInfo], FlashSparseConfig]:
    """Takes a quantized checkpoint as a packed one.

    Args:
        quantized: Its tensors.
        dtype: Of unpacked weights, where neither the user nor the scales of groups rule it.
        given: What the user asks for.

    Returns:
        Entries with packed tensors in the place of codes, and the configuration that a packed
        checkpoint would have.

    Raises:
        CheckpointError: For codes that are not read.
        FormatError: Where what is asked for contradicts the codes.
    """
    asked = FlashSparseConfig() if given is None else given
    target, options = _target_of(asked, quantized.quantization, quantized.path)
    named = None if asked.dtype is None else parse_dtype(asked.dtype, target.dtypes)
    weights = quantized.weights(named or half_dtype(dtype))
    schemes = {
        weight.layer: scheme_of(target, weight, options, named or weight.dtype)
        for weight in weights
    }
    config = _config(schemes, quantized.tensors, by_part(weights).keys())
    for name, value in asked.while_loading.items():
        setattr(config, name, value)
    return quantized.packed(weights, schemes), config


def _target_of(
    asked: FlashSparseConfig, quantization: Mapping[str, Any], path: Path
) -> tuple[Format, dict[str, Any]]:
    """`target_of`, which also refuses settings that a quantized checkpoint leaves no room for."""
    named = asked.format if "format" in asked.model_fields_set else None
    try:
        target = target_of(quantization, named, asked.options)
    except FormatError as error:
        raise FormatError(
            f"{path} is quantized, and {error}. Leave the format out, or unpack them: flashsparse "
            f"convert MODEL OUT --format {named}"
        ) from None
    if asked.pruning != "none":
        raise FormatError(
            f"{path} is quantized, and codes are not pruned: start from the model "
            "before it was quantized"
        )
    return target


def _config(
    schemes: Mapping[str, Scheme],
    tensors: Mapping[str, TensorInfo],
    codes: Collection[str],
) -> FlashSparseConfig:
    """The configuration of a packed checkpoint with these schemes; all other layers are dense."""
    (most, _), *_ = Counter(schemes.values()).most_common(1)
    layers = {
        layer: LayerConfig(format=scheme.format.name, options=scheme.values)
        for layer, scheme in schemes.items()
        if scheme != most
    }
    for name, info in tensors.items():
        if name.endswith(".weight") and len(info.shape) == 2 and name not in codes:
            layers[name.removesuffix(".weight")] = LayerConfig(format=DENSE, reason=NOT_QUANTIZED)
    n, m = (most.values.get(each) for each in ("n", "m"))
    return FlashSparseConfig(
        format=most.format.name,
        format_version=most.format.version,
        dtype=dtype_name(most.dtype),
        sparsity=1 - n / m if n and m else None,
        ignore=[],
        options=most.values,
        layers=layers,
    )
