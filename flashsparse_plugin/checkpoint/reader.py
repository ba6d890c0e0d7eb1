# SPDX-License-Identifier: Apache-2.0
"""ModelDirectory: a model directory on disk, read tensor by tensor and never trusted.

Opening a directory reads config.json, the index and the headers of the safetensors files, and
proves that they agree; no weight is loaded. Tensors are mapped from their file one at a time, so
that only the tensors that the caller holds are resident.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..files import read_bounded
from ..packed import FormatError

CONFIG = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

MAX_CONFIG_BYTES: Final = 16 << 20  # a table of 100,000 layers takes as much
MAX_INDEX_BYTES: Final = 64 << 20  # some 500,000 tensors
MAX_NAME: Final = 1000  # characters of a tensor's name
MAX_EMPTY_LAYERS: Final = 1000  # that config.json may count above the tensors in the files

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

    def read(self) -> Tensor:
        """Maps the tensor from its file; its pages are resident while the tensor is held."""
        with _open(self.path) as file:
            tensor = file.get_tensor(self.name)
        # A file may place a tensor anywhere; kernels read whole elements.
        return tensor if tensor.data_ptr() % tensor.itemsize == 0 else tensor.clone()

    def rows(self, max_elements: int = 1 << 24) -> Iterator[Tensor]:
        """Yields the tensor in slices along its first dimension, of about `max_elements` each.

        The slices depend on the shape alone.
        """
        if math.prod(self.shape) <= max_elements:
            yield self.read()
            return
        step = max(1, max_elements * self.shape[0] // math.prod(self.shape))
        for start in range(0, self.shape[0], step):
            with _open(
                self.path
            ) as file:  # opened again, since closing drops the pages read so far
                part = file.get_slice(self.name)[start : start + step]
            yield part


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


def require_inside(path: Path, home: Path) -> None:
    """Raises CheckpointError unless a path is a regular file inside of a model directory.

    A link may lead to the shared blobs of the Hub's cache, whose snapshots consist of links.
    """
    try:
        is_file = path.is_file()
    except OSError:  # a name that is too long
        is_file = False
    if not is_file:
        raise CheckpointError(
            f"{path.name[:255]} is missing in {home}, or no regular file: fetch the model again"
        )
    home = home.resolve()
    if home.parent.name == "snapshots":
        home = home.parent.parent
    if not path.resolve().is_relative_to(home):
        what = "is a link that leads out of" if path.is_symlink() else "is outside of"
        raise CheckpointError(
            f"{path} {what} the model directory, to {path.resolve()}: copy the file into the "
            "directory if you trust it"
        )


def _read_json(path: Path, most: int) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise CheckpointError(f"{path} claims {twice!r} twice: fetch it again")
        return found

    try:
        data = json.loads(read_bounded(path, most), object_pairs_hook=once)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): fetch it again") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): fetch it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


class ModelDirectory:
    """A model directory with safetensors weights, dense or packed.

    Attributes:
        path: The directory.
        config: The content of config.json.
        tensors: Header entries by tensor name, in file order and natural order of names.
        shards: The safetensors files.

    Args:
        path: The directory.

    Raises:
        CheckpointError: If a file is missing, damaged, contradictory, outside of the directory, or
            a pickle; the message tells the remedy.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise CheckpointError(
                f"{path} is not a directory. Fetch a model from the Hub first, e.g. with "
                "`hf download ORGANISATION/MODEL --local-dir DIRECTORY`"
            )
        if not (self.path / CONFIG).exists():
            raise CheckpointError(f"{self.path} is not a model directory: it has no {CONFIG}")
        self.config = _read_json(self.locate(CONFIG), MAX_CONFIG_BYTES)
        weight_map = self._weight_map()
        self.shards = tuple(self.locate(name) for name in sorted(set(weight_map.values())))
        self.tensors = self._check_headers(weight_map)
        self._check_layer_counts(self.config)

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """The `quantization_config` of config.json, or None if there is none."""
        found = self.config.get("quantization_config")
        if found is not None and not isinstance(found, dict):
            raise CheckpointError(
                f"quantization_config in {self.path / CONFIG} is not a JSON object"
            )
        return found or None

    def locate(self, name: str) -> Path:
        """Returns the path of a file of this directory; refuses files outside of it."""
        if not _is_file_name(name):
            raise CheckpointError(
                f"{self.path} refers to a file {name!r}: only files in the directory itself are "
                "read. Fetch the model again from a source that you trust"
            )
        require_inside(self.path / name, self.path)
        return self.path / name

    def _weight_map(self) -> dict[str, str] | dict[None, str]:
        """Returns the file of each tensor by the index; {None: file} if there is only one file."""
        single, index = ((self.path / name).exists() for name in (SINGLE_FILE, INDEX))
        if single and index:
            raise CheckpointError(
                f"{self.path} holds both {SINGLE_FILE} and {INDEX}, and they may differ: "
                "remove the one that is not the model"
            )
        if single:
            return {None: SINGLE_FILE}
        if not index:
            raise CheckpointError(self._no_weights())
        weight_map = _read_json(self.locate(INDEX), MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{self.path / INDEX} has no weight_map: fetch it again")
        for name, file in weight_map.items():
            if not isinstance(file, str) or not file.endswith(".safetensors"):
                raise CheckpointError(
                    f"{self.path / INDEX} places tensor {name!r} in {file!r}, which is no "
                    "safetensors file"
                )
        return weight_map

    def _no_weights(self) -> str:
        pickles = sorted(p.name for p in self.path.iterdir() if p.suffix in PICKLES)
        if not pickles:
            return f"{self.path} holds neither {SINGLE_FILE} nor {INDEX}"
        return (
            f"{self.path} holds its weights as pickles ({pickles[0]}), which can run any code when "
            "they are opened: only safetensors are read. If you trust the model, convert it once: "
            'python -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('
            f"'{self.path}', dtype='auto').save_pretrained('{self.path}-safetensors')\""
        )

    def _check_headers(self, weight_map: Mapping[Any, str]) -> dict[str, TensorInfo]:
        tensors = read_headers(self.shards)
        if None in weight_map:
            return tensors
        for name, file in weight_map.items():
            if name not in tensors or tensors[name].path.name != file:
                raise CheckpointError(
                    f"{INDEX} places tensor {name!r} in {file}, and that file does not contain it: "
                    "fetch the model again"
                )
        unlisted = sorted(tensors.keys() - weight_map.keys())
        if unlisted:
            raise CheckpointError(
                f"tensor {unlisted[0]!r} is in {tensors[unlisted[0]].path.name} and not in "
                f"{INDEX} ({len(unlisted)} such tensors): fetch the model again"
            )
        return tensors

    def _check_layer_counts(self, config: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a number of layers that would take all memory to build."""
        most = len(self.tensors) + MAX_EMPTY_LAYERS
        for key, value in config.items():
            if isinstance(value, dict):
                self._check_layer_counts(value)
            elif "layer" in key and isinstance(value, int) and value > most:
                raise CheckpointError(
                    f"{key} in {self.path / CONFIG} is {min(value, 10**18):,}, and the files hold "
                    f"{len(self.tensors)} tensors: the two belong to different models, fetch them "
                    "together again"
                )


def _is_file_name(name: object) -> bool:
    """Whether a value is the name of a file that may be in a directory itself."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        return False
    return len(name.encode(errors="surrogatepass")) <= 255 and name.isprintable()


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layers.2 before layers.10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
