# SPDX-License-Identifier: Apache-2.0
"""The formats by name. A new format adds one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..names import DEFAULT_FORMAT
from ..packed import Format, FormatError, PackedWeight
from .pattern.cpu_panels import NMPanels, NMRows
from .pattern.exact_nm import ExactNM
from .pattern.hybrid_24 import Hybrid24, HybridPanels, HybridUnits
from .pattern.nm_gather import NMGather
from .pattern.nm_spmm import NMSpmm
from .pattern.nm_vector import NMVector
from .pattern.sparse_24 import Sparse24
from .unstructured.exact_units import ExactUnits
from .unstructured.interleaved_bitmap import InterleavedBitmap
from .unstructured.lossless import Lossless
from .unstructured.tiled_bitmap import TiledBitmap
from .unstructured.tiled_csl import TiledCSL

_FORMATS: dict[str, Format] = {}


def register_format(format: Format) -> None:
    """Makes a format known by its name, to this process.

    Raises:
        FormatError: Where the name is taken by another format.
    """
    if _FORMATS.setdefault(format.name, format) is not format:
        raise FormatError(f"there is a format called {format.name!r} already")


RETIRED = ("cusparselt_24",)
"""Runtime forms of earlier releases, which a user's table may still name."""

_RUNTIME_FORMS: tuple[Format, ...] = (
    *(InterleavedBitmap(), NMPanels(), NMRows(), HybridPanels()),
    *(NMGather(), NMSpmm(), Sparse24(), HybridUnits(), ExactUnits()),
)
_STORED: tuple[Format, ...] = (
    *(TiledCSL(), TiledBitmap(), NMVector(), Hybrid24(), Lossless(), ExactNM()),
)
for _format in (*_STORED, *_RUNTIME_FORMS):
    register_format(_format)


def all_formats() -> tuple[Format, ...]:
    """Every format, runtime forms included."""
    return tuple(_FORMATS.values())


def format_names() -> tuple[str, ...]:
    """Names of the formats that a weight can be packed to and stored in."""
    return tuple(name for name, format in _FORMATS.items() if format.on_disk)


def get_format(name: str) -> Format:
    """Returns the format called `name`.

    Raises:
        FormatError: Where there is none that can be stored, listing those that can.
    """
    if name in format_names():
        return _FORMATS[name]
    short = (short for format in all_formats() for short in format.short_names)
    raise FormatError(
        f"unknown format {name!r}; this version of flashsparse-plugin knows "
        f"{', '.join(format_names())}, and patterns such as {', '.join(short)}"
    )


def read_format(
    name: str, options: Mapping[str, Any] | None = None
) -> tuple[str, Mapping[str, Any]]:
    """Returns the format and the options that users mean by a name and options beside it.

    A short name such as "2:4-int8" stands for a format with options. Any other name is returned
    unchanged, for `get_format` to judge.

    Args:
        name: A format's name, or a short one.
        options: What is given beside it.

    Raises:
        FormatError: For an invalid short name, and for an option that contradicts it.
    """
    options = options or {}
    for format in all_formats():
        named = format.options_named(name) if format.on_disk else None
        if named is None:
            continue
        for key, value in named.items():
            if options.get(key, value) != value:
                raise FormatError(
                    f"format {name!r} means {key}={value}, and the option says {options[key]}: "
                    "leave one of the two out"
                )
        return format.name, {**named, **options}
    return name, options


def as_option(name: str, options: Mapping[str, Any]) -> str:
    """How commands are told a format with options, in short where a short name means the same.

    Args:
        name: The format's name.
        options: All that are set.

    Returns:
        "--format 2:4-int8", or "--format nm_vector --option n=2 --option m=4 ...".
    """
    if {"n", "m"} <= options.keys():
        rows, values = options.get("vector_length", 1), options.get("values")
        short = f"{options['n']}:{options['m']}"
        short += f"-L{rows}" if rows != 1 else ""
        short += f"-{values}" if values not in (None, "native") else ""
        meant, named = read_format(short)
        made = get_format(name).scheme
        if meant == name and made(torch.bfloat16, named) == made(torch.bfloat16, options):
            return f"--format {short}"
    return " ".join([f"--format {name}", *(f"--option {k}={v}" for k, v in options.items())])


def find_form(name: str) -> Format:
    """Returns the format called `name`, which may be a form that is never stored.

    Raises:
        FormatError: Where there is none, listing those that can be stored.
    """
    return _FORMATS[name] if name in _FORMATS else get_format(name)


def packed_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Finds the packed layers among tensor names.

    Args:
        names: Names of all tensors of a checkpoint.

    Returns:
        For each packed layer its tensors: the tensor's own name ("weight_packed") to its full name.
        A layer that has a dense weight beside a scale is not packed.
    """
    own = {name for format in _FORMATS.values() if format.on_disk for name in format.tensor_names}
    principal = {format.tensor_names[0] for format in _FORMATS.values() if format.on_disk}
    layers: dict[str, dict[str, str]] = {}
    for name in names:
        layer, _, last = name.rpartition(".")
        if last in own:
            layers.setdefault(layer, {})[last] = name
    dense = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    return {
        layer: tensors
        for layer, tensors in layers.items()
        if layer not in dense or principal & tensors.keys()
    }


def pack(
    weight: Tensor,
    format: str = DEFAULT_FORMAT,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> PackedWeight:
    """Packs one weight.

    Args:
        weight: [out_features, in_features] of a dtype that the format takes (for unstructured
            formats float16 or bfloat16). Elements equal to zero are dropped; all others are kept
            bit for bit, NaN and infinities included.
        format: One of `format_names()`, or a pattern in short: "2:4", "2:4-int8", "8:32-L32".
        options: Options of the format, by name.
        **more: Options as keywords: `pack(weight, "nm_vector", n=2, m=4)`.

    Returns:
        The packed weight on the device of `weight`; `.unpack()` gives it back.

    Raises:
        FormatError: For an unknown format, a tensor that is no weight, and a dtype or options that
            the format does not take: nothing is rounded.
    """
    format, options = read_format(format, {**(options or {}), **more})
    chosen = get_format(format)
    return chosen.pack(weight, chosen.scheme(weight.dtype, options))
