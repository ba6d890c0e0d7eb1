# SPDX-License-Identifier: Apache-2.0
"""The formats by name. A new format adds one line here."""

from __future__ import annotations

from torch import Tensor

from ..packed import Format, FormatError, PackedWeight
from .tiled_csl import TiledCSL

DEFAULT_FORMAT = "tiled_csl"

_FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (TiledCSL(),)}


def format_names() -> tuple[str, ...]:
    """Names of the formats that a weight can be packed to and stored in."""
    return tuple(_FORMATS)


def get_format(name: str) -> Format:
    """Returns the format called `name`.

    Raises:
        FormatError: Where there is none, listing those that exist.
    """
    try:
        return _FORMATS[name]
    except KeyError:
        raise FormatError(
            f"unknown format {name!r}; this version of flashsparse-plugin knows "
            f"{', '.join(_FORMATS)}"
        ) from None


def pack(weight: Tensor, format: str = "tiled_csl", **options: int) -> PackedWeight:
    """Packs one weight.

    Args:
        weight: [out_features, in_features], float16 or bfloat16. Elements equal to zero are
            dropped; all others are kept bit for bit, NaN and infinities included.
        format: One of `format_names()`.
        **options: Options of the format.

    Returns:
        The packed weight on the device of `weight`; `.unpack()` gives it back.

    Raises:
        FormatError: For an unknown format, a tensor that is no weight, or options that the format
            does not have.
    """
    chosen = get_format(format)
    try:
        return chosen.pack(weight, **options)
    except TypeError as error:
        raise FormatError(f"{format} cannot be packed with options {options}: {error}") from None
