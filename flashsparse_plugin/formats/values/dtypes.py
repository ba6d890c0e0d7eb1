# SPDX-License-Identifier: Apache-2.0
"""How values are stored: dtypes by name, and the one way from one dtype to another."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...packed import Format, FormatError, Scheme, dtype_name


def parse_dtype(name: str | torch.dtype, allowed: Iterable[torch.dtype]) -> torch.dtype:
    """Returns one of some dtypes, by its name or as it is.

    Raises:
        FormatError: Where it is none of them.
    """
    names = {dtype_name(dtype): dtype for dtype in allowed}
    found = names.get(name) if isinstance(name, str) else name
    if found is None or found not in names.values():
        raise FormatError(f"dtype must be {' or '.join(names)}, not {name}")
    return found


def packable_dtype(format: Format, *wanted: torch.dtype | str | None) -> torch.dtype:
    """The dtype to pack in: the first wanted one that the format takes, else its own choice.

    Args:
        format: The format that is to hold the weight.
        *wanted: In order of preference: what is configured, the model's dtype, the file's.
    """
    names = {dtype_name(dtype): dtype for dtype in format.dtypes}
    for dtype in wanted:
        name = dtype if isinstance(dtype, str) else dtype and dtype_name(dtype)
        if name in names:
            return names[name]
    return format.dtypes[-1]


def value_bits(dtype: torch.dtype) -> torch.dtype:
    """The integers in which value bits of a dtype are stored: int16, or int32 for float32."""
    return torch.int32 if dtype == torch.float32 else torch.int16


def magnitudes(bits: Tensor) -> Tensor:
    """Value bits without their sign, by which 0 and -0 are the same.

    Args:
        bits: Of 16- or 32-bit values: int16 or int32.
    """
    return bits & torch.iinfo(bits.dtype).max


def bits_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of the last dimension's elements, as elements of another size.

    `Tensor.view` does it for ordinary strides alone, and a part of a tensor may be contiguous
    without them: where a dimension has one element, its stride means nothing and is kept.

    Args:
        tensor: [..., n], whose last dimension is a multiple of the new elements' size.
        dtype: Of the new elements.

    Returns:
        [..., n * old size / new size], a copy where the memory does not allow a view.
    """
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1 or flat.storage_offset() * flat.itemsize % dtype.itemsize:
        flat = flat.clone(memory_format=torch.contiguous_format)
    length = tensor.shape[-1] * tensor.itemsize // dtype.itemsize
    return flat.view(dtype).view(*tensor.shape[:-1], length)


def cast(values: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Rounds to nearest; NaN and infinities stay what they are.

    Args:
        values: A tensor of any floating dtype.
        dtype: To round to.
        name: Name of the tensor, for the error message.

    Raises:
        FormatError: Where a finite value would become infinite.
    """
    if values.dtype == dtype:
        return values
    rounded = values.to(dtype)
    lost = rounded.isinf() & values.isfinite()
    if bool(lost.any()):
        raise FormatError(
            f"tensor {name!r}: {int(lost.sum())} of its values, up to "
            f"{float(values[lost].abs().max()):.3g}, are too large for {dtype_name(dtype)}. "
            "Remedy: dtype bfloat16, which has the range of float32"
        )
    return rounded


def fitted(values: Tensor, scheme: Scheme, name: str) -> Tensor:
    """A weight in the dtype in which a scheme packs it, rounded where the format rounds.

    Args:
        values: A tensor of any floating dtype.
        scheme: How it is to be packed.
        name: Name of the tensor, for the error message.

    Raises:
        FormatError: For values that the scheme cannot hold.
    """
    if not scheme.format.rounds and (changed := count_changed(values, scheme.dtype)):
        wanted = dtype_name(scheme.dtype)
        raise FormatError(
            f"tensor {name!r} {list(values.shape)}: {changed:,} of its {dtype_name(values.dtype)} "
            f"values are no {wanted} numbers, and {scheme.format.name} rounds nothing. Remedy: "
            f"leave it dense, or round the model first, where that is meant: model.to({wanted})"
        )
    return cast(values, scheme.dtype, name)


def count_changed(values: Tensor, dtype: torch.dtype) -> int:
    """Counts the values that rounding to `dtype` changes; NaN stays NaN."""
    if values.dtype == dtype:
        return 0
    return int(((values != values.to(dtype).to(values.dtype)) & ~values.isnan()).sum())
