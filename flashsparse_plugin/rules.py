# SPDX-License-Identifier: Apache-2.0
"""What is asked of weights, of packed tensors and of cuts, and how a broken rule is told.

Ground floor: knows neither formats nor schemes, but for the words that they go by in a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .messages import PrintableMessage, is_out_of_memory


class FormatError(PrintableMessage, ValueError):
    """A weight, a scheme or a packed tensor that breaks a rule of its format.

    The message names the layer where one is known, the shape, the rule and the remedy.
    """


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name that config.json uses: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


class TensorSpec(NamedTuple):
    """What a packed tensor looks like. All of them are contiguous.

    Attributes:
        dtype: Dtype of its elements. Integers stand for bits; a scale may be a float, and keeps its
            dtype when the module around it is cast.
        shape: Its sizes. None in place of the first: a stream, whose length depends on the kept
            values. In a runtime form a stream may be longer than needed: kernels go by offsets.
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]


@contextmanager
def rules() -> Iterator[None]:
    """Turns an op's RuntimeError about a broken rule into a FormatError of one line.

    A lack of memory and a failure of the device are no verdict on a weight, and pass through.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error) or "CUDA error" in str(error):
            raise
        raise FormatError(str(error).splitlines()[0]) from None


def option_complaint(error: ValidationError, options: type[BaseModel]) -> str:
    """The first of the mistakes in some options, to follow the name of the format."""
    first = error.errors(include_url=False)[0]
    option = ".".join(map(str, first["loc"]))
    known = ", ".join(options.model_fields) or "none"
    if first["type"] == "extra_forbidden":
        return f" has no option {option!r}; its options: {known}"
    if first["type"] == "missing":
        return f" needs the option {option!r}; its options: {known}"
    message = first["msg"].removeprefix("Value error, ")
    return f": {f'option {option}: ' if option else ''}{message}"


def require_version(format: str, version: int, latest: int) -> None:
    """Raises FormatError unless this release reads a version of a format, of which it writes one.

    Args:
        format: Its name.
        version: What wrote the tensors.
        latest: What this release writes.
    """
    if version > latest:
        raise FormatError(
            f"this checkpoint is {format} version {version}; this version of flashsparse-plugin "
            f"reads up to version {latest}. Remedy: pip install -U flashsparse-plugin, to a "
            f"release that knows {format} version {version}"
        )
    if version < 1:
        raise FormatError(
            f"this checkpoint claims to be {format} version {version}, and versions start at 1. "
            "Remedy: convert the dense model with `flashsparse convert`"
        )


def require_dense(weight: Tensor, scheme: object, format: str, dtype: torch.dtype) -> None:
    """Raises FormatError unless a weight is a plain matrix of a dtype, which can be packed.

    Args:
        weight: The weight.
        scheme: By what it is packed, for the message, as are the rest.
        format: The name of its format.
        dtype: Its dtype of unpacked weights.
    """
    if weight.layout != torch.strided:
        raise FormatError(
            f"{format} packs a dense weight with zeros in it, not a tensor of layout "
            f"{weight.layout}: unpack it first, weight.to_dense()"
        )
    if is_traceable_wrapper_subclass(weight):
        raise FormatError(
            f"{format} packs a plain tensor {list(weight.shape)}, not a {type(weight).__name__}, "
            "which another tool quantized or sharded. Remedy: pack the model before that, or what "
            "its weight.dequantize() or weight.full_tensor() gives"
        )
    if weight.dim() != 2 or min(weight.shape) < 1:
        raise FormatError(
            f"{format} packs a weight [out_features, in_features] with at least one row and one "
            f"column, not a tensor of shape {list(weight.shape)}"
        )
    if weight.dtype != dtype:
        raise FormatError(
            f"a {scheme} weight is made of {dtype_name(dtype)} values, not of "
            f"{dtype_name(weight.dtype)}: convert them first, weight.to({dtype})"
        )


def require_shape(shape: Sequence[int]) -> None:
    """Raises FormatError unless a shape is that of a weight."""
    if len(shape) != 2 or min(shape) < 1:
        raise FormatError(f"the shape must be (out_features, in_features), not {shape}")


def require_tensors(tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> None:
    """Raises FormatError unless tensors are there as specified, no more of them and no fewer.

    All must be contiguous, since kernels take no strides. Reads no element, so tensors may be on
    the meta device.
    """
    missing, unknown = specs.keys() - tensors.keys(), tensors.keys() - specs.keys()
    if missing or unknown:
        raise FormatError(
            f"tensors missing: {', '.join(sorted(missing)) or 'none'}; "
            f"unknown: {', '.join(sorted(unknown)) or 'none'}"
        )
    for name, spec in specs.items():
        tensor = tensors[name]
        if tensor.dtype != spec.dtype:
            raise FormatError(f"{name} must be {spec.dtype}, not {tensor.dtype}")
        sizes = zip(tensor.shape, spec.shape, strict=False)
        if tensor.dim() != len(spec.shape) or any(s not in (None, t) for t, s in sizes):
            wanted = ", ".join("any" if size is None else str(size) for size in spec.shape)
            raise FormatError(f"{name} must be [{wanted}], not {list(tensor.shape)}")
        if not tensor.is_contiguous():
            raise FormatError(
                f"{name} must be contiguous, not of strides {list(tensor.stride())}: pass "
                f"{name}.contiguous()"
            )


def require_cut(
    scheme: object,
    shape: tuple[int, int],
    grain: tuple[int | None, int | None],
    rows: range,
    columns: range,
) -> None:
    """Raises FormatError unless a weight may be cut at the ends of some rows and columns.

    Args:
        scheme: How the weight is packed, for the message.
        shape: (out_features, in_features).
        grain: At multiples of so many rows and columns a cut is possible; None: nowhere.
        rows: Of the part.
        columns: Of the part.
    """
    for taken, size, step, what in zip(
        (rows, columns), shape, grain, ("row", "column"), strict=True
    ):
        ends = [end for end in (taken.start, taken.stop) if end not in (0, size)]
        if any(step is None or end % step for end in ends):
            raise FormatError(
                f"a {scheme} weight of shape {list(shape)} cannot be cut at {what} {ends[0]}: "
                f"{_steps(step, what)}"
            )


def require_join(parts: Sequence[tuple[object, tuple[int, int]]], grain: int | None) -> None:
    """Raises FormatError unless weights can be put on top of each other.

    Args:
        parts: Scheme and shape of each.
        grain: The rows at whose multiples all but the last must end; None: nowhere.
    """
    scheme, (_, columns) = parts[0]
    for own, shape in parts:
        if (own, shape[1]) != (scheme, columns):
            raise FormatError(
                f"weights of {scheme} with {columns} columns and of {own} with {shape[1]} cannot "
                "be joined: all need one scheme and one width"
            )
    for _, (rows, _) in parts[:-1]:
        if grain is None or rows % grain:
            raise FormatError(
                f"{scheme} cannot join a weight of {rows} rows with another: {_steps(grain, 'row')}"
            )


def _steps(grain: int | None, what: str) -> str:
    return f"only at multiples of {grain}" if grain else f"it cannot be cut between {what}s"
