# SPDX-License-Identifier: Apache-2.0
"""ModelDirectory: a model directory on disk, read tensor by tensor and never trusted.

Opening a directory reads config.json, the index and the headers of the safetensors files, and
proves that they agree; no weight is loaded. Tensors are mapped from their file one at a time, so
that only the tensors that the caller holds are resident.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..files import read_bounded
from ..formats import format_names, get_format, packed_names
from ..names import QUANT_METHOD
from ..packed import FormatError
from .foreign import find_foreign
from .foreign.layout import Layout
from .foreign.sparsity_config import without_sparsity

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

    @property
    def bytes_stored(self) -> int:
        """What it takes in its file."""
        return self.nbytes

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


@dataclass(frozen=True)
class ForeignTensorInfo(TensorInfo):
    """A weight that its files keep in another tool's layout; whoever reads it gets it dense.

    Attributes:
        layout: The layout.
        parts: The entries of its tensors in the files.
    """

    layout: Layout = field(kw_only=True)
    parts: Mapping[str, TensorInfo] = field(kw_only=True)

    @classmethod
    def find(cls, name: str, layout: Layout, parts: Mapping[str, TensorInfo]) -> ForeignTensorInfo:
        """Reads the shape of a weight, and no other tensor of it.

        Raises:
            CheckpointError: Where its tensors have not the dtypes and shapes of the layout.
        """
        values = parts["compressed"]
        tensors = {
            part: torch.empty(info.shape, dtype=info.dtype, device="meta")
            for part, info in parts.items()
        }
        if parts["shape"].nbytes <= _MAX_SHAPE_BYTES:
            tensors["shape"] = parts["shape"].read()
        try:
            shape = layout.shape(name, tensors)
        except FormatError as error:
            raise CheckpointError(f"{values.path}: {error}") from None
        return cls(name, values.path, values.dtype, shape, layout=layout, parts=parts)

    @property
    def bytes_stored(self) -> int:
        return sum(info.nbytes for info in self.parts.values())

    def check(self) -> None:
        """Proves what its tensors say of the weight.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout.
        """
        self._ask(self.layout.check)

    def read(self) -> Tensor:
        """Makes the weight.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout.
        """
        return self._ask(self.layout.dense)

    def _ask(self, question: Callable[[str, Mapping[str, Tensor]], Any]) -> Any:
        try:
            return question(self.name, {part: info.read() for part, info in self.parts.items()})
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def rows(self, max_elements: int = 1 << 24) -> Iterator[Tensor]:
        yield from self.read().split(max(1, max_elements * self.shape[0] // math.prod(self.shape)))


_MAX_SHAPE_BYTES = 16  # two numbers


def as_dense(tensors: Mapping[str, TensorInfo], path: Path) -> dict[str, TensorInfo]:
    """Puts dense weights in the place of tensors that other tools keep for them.

    Args:
        tensors: The entries of all tensors of a checkpoint.
        path: Where they are, for error messages.

    Raises:
        CheckpointError: For tensors that are no whole weight.
    """
    try:
        found = find_foreign(tensors)
    except FormatError as error:
        raise CheckpointError(f"{path}: {error}") from None
    weight_of: dict[str, TensorInfo] = {}
    for name, (layout, parts) in found.items():
        infos = {part: tensors[each] for part, each in parts.items()}
        weight_of |= dict.fromkeys(parts.values(), ForeignTensorInfo.find(name, layout, infos))
    dense: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        shown = weight_of.get(name, info)
        dense[shown.name] = shown
    return dense


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


def shards_in(home: Path) -> list[Path]:
    """The safetensors files of a directory, and those that its index names, wherever they are."""
    named: set[Path] = set(home.glob("*.safetensors"))
    if (home / INDEX).is_file():
        weight_map = _read_json(home / INDEX, MAX_INDEX_BYTES).get("weight_map")
        files = weight_map.values() if isinstance(weight_map, dict) else ()
        named |= {home / file for file in files if isinstance(file, str)}
    return sorted(named)


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
        config: The content of config.json, less what tells of nothing but zeros.
        tensors: Header entries by tensor name, in file order and natural order of names. Weights
            that are kept in another tool's layout are entries of the dense ones.
        shards: The safetensors files.

    Args:
        path: The directory.

    Raises:
        CheckpointError: If a file is missing, damaged, contradictory, outside of the directory, or
            a pickle; the message tells the remedy.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        refuse_no_model(self.path)
        self.config = without_sparsity(_read_json(self.locate(CONFIG), MAX_CONFIG_BYTES))
        weight_map = self._weight_map()
        self.shards = tuple(self.locate(name) for name in sorted(set(weight_map.values())))
        self.tensors = as_dense(self._check_headers(weight_map), self.path)
        self._check_layer_counts(self.config)
        refuse_unmarked(self.tensors, self.quantization, self.path)
        self._refuse_masks()

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors as they are in the files."""
        return sum(info.bytes_stored for info in self.tensors.values())

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

    def _refuse_masks(self) -> None:
        """Raises CheckpointError for weights that torch.nn.utils.prune left in two parts."""
        for name in self.tensors:
            layer = name.removesuffix(".weight_orig")
            if layer != name and f"{layer}.weight_mask" in self.tensors:
                raise CheckpointError(
                    f"{self.path} keeps layer {layer!r} as weight_orig and weight_mask, as "
                    "torch.nn.utils.prune does until pruning is made permanent: call "
                    "torch.nn.utils.prune.remove(module, 'weight') on each such layer of the "
                    "model, and save it again"
                )

    def _no_weights(self) -> str:
        if _gguf_in(self.path) is not None:
            return _about_gguf(self.path)
        pickles = sorted(p.name for p in self.path.iterdir() if p.suffix in PICKLES)
        if not pickles:
            return f"{self.path} holds neither {SINGLE_FILE} nor {INDEX}"
        return (
            f"{self.path} holds its weights as pickles ({pickles[0]}), which can run any code when "
            "they are opened: only safetensors are read. If you trust the model, convert it once: "
            f'python -c "from transformers import {self._class_name()} as M; M.from_pretrained('
            f"'{self.path}', dtype='auto').save_pretrained('{self.path}-safetensors')\""
        )

    def _class_name(self) -> str:
        names = self.config.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        return name if isinstance(name, str) and name.isidentifier() else "AutoModelForCausalLM"

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


def refuse_no_model(path: Path) -> None:
    """Raises CheckpointError where there is no model directory, and says what is there instead."""
    if _gguf_in(path) is not None and not (path / CONFIG).exists():
        raise CheckpointError(_about_gguf(path))
    if not path.is_dir():
        known = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not path.is_absolute()
        name, folder = (str(path), path.name) if known else ("ORGANISATION/NAME", "DIRECTORY")
        raise CheckpointError(
            f"{path} is not a directory. A model is a local directory as transformers saves it; "
            f"one from the Hub is fetched with: hf download {name} --local-dir {folder}"
        )
    if not (path / CONFIG).is_file():
        raise CheckpointError(f"{path} is not a model directory: it has no {CONFIG}")


def _gguf_in(path: Path) -> Path | None:
    """A GGUF file: the path itself, or the first in a directory."""
    if path.is_dir():
        return min(path.glob("*.gguf"), default=None)
    return path if path.suffix == ".gguf" and path.is_file() else None


def _about_gguf(path: Path) -> str:
    file = _gguf_in(path)
    assert file is not None
    out = file.parent / f"{file.stem}-safetensors"
    return (
        f"{file} is a GGUF file, and only safetensors are read. transformers unpacks it once: "
        'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        f"[C.from_pretrained('{file.parent}', gguf_file='{file.name}').save_pretrained('{out}') "
        'for C in (M, T)]"'
    )


def refuse_unmarked(
    names: Iterable[str], quantization: Mapping[str, Any] | None, path: Path
) -> None:
    """Raises CheckpointError for packed layers of which config.json does not know.

    Whoever loads by that config would leave them out, and run on random weights instead.

    Args:
        names: Names of all tensors.
        quantization: The quantization_config, if any.
        path: Where they are, for the message.
    """
    method = None if quantization is None else quantization.get("quant_method")
    if method == QUANT_METHOD:
        return
    ours = [
        set(scheme.format.tensors(scheme, (1, 1)))
        for name in format_names()
        for scheme in get_format(name).examples()
    ]
    for layer, tensors in packed_names(names).items():
        # Another method may call a tensor of its own as we do (compressed-tensors: weight_packed).
        if quantization is None or any(whole <= tensors.keys() for whole in ours):
            told = "has no quantization_config of flashsparse"
            if quantization is not None:
                told = f"has the quant_method {method!r}"
            raise CheckpointError(
                f"layer {layer!r} of {path} is packed by flashsparse, and its {CONFIG} {told}: "
                "restore the quantization_config that `flashsparse convert` wrote, or convert the "
                "dense model again"
            )


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


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layers.2 before layers.10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
