# SPDX-License-Identifier: Apache-2.0
"""The headers of safetensors files: which tensors there are, without loading any."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...packed import FormatError

MAX_NAME: Final = 1000  # characters of a tensor's name

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""The dtypes of safetensors files, by the names that their headers use."""


class CheckpointError(FormatError):
    """A model directory that cannot be read or written; the message tells the remedy."""


CHECKSUM = "flashsparse.xxh3."
"""Of a packed tensor's checksum in the metadata of its file; the tensor's name follows."""


@dataclass(frozen=True)
class TensorInfo:
    """The entry of one tensor in a file's header; of a packed one with its checksum, if known."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    checksum: str | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def weight_shape(self) -> tuple[int, ...] | None:
        """The shape that the file states for the weight that this tensor is a packed part of."""
        return None

    @property
    def bytes_stored(self) -> int:
        """What it takes in its file."""
        return self.nbytes

    def read(self) -> Tensor:
        """Maps the tensor from its file; its pages are resident while the tensor is held."""
        with _open(self.path) as file:
            return aligned(file.get_tensor(self.name))

    def rows(self, max_elements: int = 1 << 24) -> Iterator[Tensor]:
        """Yields the tensor in slices along its first dimension, of about `max_elements` each.

        The slices depend on the shape alone.
        """
        if math.prod(self.shape) <= max_elements:
            yield self.read()
            return
        step = max(1, max_elements * self.shape[0] // math.prod(self.shape))
        for start in range(0, self.shape[0], step):
            yield self.part(start, start + step)

    def part(self, start: int, stop: int) -> Tensor:
        """A slice of the tensor along its first dimension."""
        with _open(self.path) as file:  # opened for each: closing drops the pages read so far
            return file.get_slice(self.name)[start:stop]


@dataclass(frozen=True)
class MadeTensorInfo(TensorInfo):
    """A tensor that no file has as it is, but that `read` makes, whole, of what files have."""

    def rows(self, max_elements: int = 1 << 24) -> Iterator[Tensor]:
        yield from self.read().split(max(1, max_elements * self.shape[0] // math.prod(self.shape)))

    def part(self, start: int, stop: int) -> Tensor:
        return self.read()[start:stop]


def aligned(tensor: Tensor) -> Tensor:
    """A tensor as it was read from a file, or a copy where it does not start on a whole element.

    A header need not be padded, so a file may place a tensor anywhere; kernels read whole elements.
    """
    return tensor if tensor.data_ptr() % tensor.itemsize == 0 else tensor.clone()


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a CPU tensor, row by row; contiguous memory is not copied."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}): fetch it again"
        ) from None


def read_header(path: Path) -> list[TensorInfo]:
    """Lists the tensors of one safetensors file without loading any.

    Raises:
        CheckpointError: For a damaged file, and for dtypes below one byte or unknown to torch.
    """
    found = []
    with _open(path) as file:
        names, metadata = file.keys(), file.metadata() or {}
        for name in names:
            if len(name) > MAX_NAME:
                raise CheckpointError(
                    f"a tensor in {path.name} has a name of {len(name)} characters, "
                    f"{name[:40]!r}...: at most {MAX_NAME} are read. Fetch the model again from a "
                    "source that you trust"
                )
            header = file.get_slice(name)
            code, shape = header.get_dtype(), tuple(header.get_shape())
            if code not in DTYPES:
                raise CheckpointError(
                    f"tensor {name!r} {list(shape)} in {path.name} is of dtype {code}: quantized "
                    "checkpoints are not supported, start from the model in float16 or bfloat16"
                )
            found.append(TensorInfo(name, path, DTYPES[code], shape, metadata.get(CHECKSUM + name)))
    return found


def read_headers(paths: Iterable[Path]) -> dict[str, TensorInfo]:
    """Lists the tensors of several files by name, in the order of files and natural order of names.

    Raises:
        CheckpointError: As `read_header` does, and for a tensor that is in two files.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in paths:
        for info in sorted(read_header(path), key=lambda info: natural(info.name)):
            if info.name in tensors:
                other = tensors[info.name].path.name
                raise CheckpointError(
                    f"tensor {info.name!r} is in {other} and in {path.name}: which one is "
                    "right is unknown, fetch the model again"
                )
            tensors[info.name] = info
    return tensors


def tensor_names(files: Iterable[str | Path]) -> list[str]:
    """Names of all tensors in those of some files that are whole safetensors files."""
    names: list[str] = []
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                names += file.keys()
        except SafetensorError:
            pass  # whoever reads it says what is wrong with it
    return names


def sealed_names(files: Iterable[str | Path]) -> list[str]:
    """Names of the tensors of some files that have a checksum of ours, read as `tensor_names`."""
    names: list[str] = []
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
        except SafetensorError:
            continue
        names += [key.removeprefix(CHECKSUM) for key in metadata if key.startswith(CHECKSUM)]
    return names


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layers.2 before layers.10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
