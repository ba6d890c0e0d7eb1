# SPDX-License-Identifier: Apache-2.0
"""ModelDirectory: a model directory on disk, read tensor by tensor and never trusted.

Opening a directory reads config.json, the index and the headers of the safetensors files, and
proves that they agree; no weight is loaded. Tensors are mapped from their file one at a time, so
that only the tensors that the caller holds are resident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

import torch

from ...config import FlashSparseConfig
from ...files import read_bounded
from ..files.explanations import about_pickles
from ..files.headers import CheckpointError, TensorInfo, read_headers
from ..files.places import CONFIG, gguf_in, is_file_name, refuse_no_model, require_inside
from ..files.unmarked import refuse_unmarked
from ..foreign.code_entries import find_codes, show_weights
from ..foreign.entries import as_dense
from ..foreign.packing import as_packed, half_dtype
from ..foreign.quantization import is_quantized
from ..foreign.sparsity_config import without_sparsity

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

MAX_CONFIG_BYTES: Final = 16 << 20  # a table of 100,000 layers takes as much
MAX_INDEX_BYTES: Final = 64 << 20  # some 500,000 tensors
MAX_EMPTY_LAYERS: Final = 1000  # that config.json may count above the tensors in the files


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
            that are kept in another tool's layout are entries of the dense ones. Those that
            another tool quantized are as they are; see `with_weights` and `packed`.
        shards: The safetensors files.
        notes: What a user should know of how it was quantized, one sentence each.

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
        self.tensors = self._check_headers(weight_map)
        self.notes: list[str] = []
        if not self.has_codes:
            self.tensors = as_dense(self.tensors, self.path)
        self._check_layer_counts(self.config)
        sealed = [name for name, info in self.tensors.items() if info.checksum is not None]
        refuse_unmarked(self.tensors, self.quantization, self.path, sealed)

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

    @property
    def has_codes(self) -> bool:
        """Whether another tool quantized it, as its config.json says."""
        return is_quantized(self.quantization)

    def with_weights(self, dtype: torch.dtype | None = None) -> ModelDirectory:
        """The same directory, with a dense weight in the place of codes and scales of each layer.

        Args:
            dtype: Of these weights; None: that of the model, or of scales that it cannot hold.

        Raises:
            CheckpointError: For quantized weights that are not read.
        """
        if not self.has_codes:
            return self
        other = copy(self)
        wanted = dtype or half_dtype(*self._dtypes_named)
        codes, stated = find_codes(self.tensors, self.quantization or {}, wanted, self.path)
        other.tensors = as_dense(show_weights(self.tensors, codes), self.path)
        other.notes = stated.notes
        return other

    def packed(
        self, given: FlashSparseConfig | None = None, dtype: torch.dtype | None = None
    ) -> ModelDirectory:
        """The same directory as a packed one, with the codes of another tool as they are.

        Args:
            given: What the user asks for.
            dtype: Of activations; None: that of the model.

        Raises:
            CheckpointError: For quantized weights that are not read.
            FormatError: Where what is asked for contradicts the codes.
        """
        if not self.has_codes:
            return self
        other = copy(self)
        wanted = half_dtype(dtype, *self._dtypes_named)
        other.tensors, config, stated = as_packed(
            self.tensors, self.path, self.quantization or {}, wanted, given
        )
        other.config = {**self.config, "quantization_config": config.to_dict()}
        other.notes = stated.notes
        return other

    def with_tensors(self, tensors: Mapping[str, TensorInfo]) -> ModelDirectory:
        """The same directory, with these entries of tensors."""
        other = copy(self)
        other.tensors = dict(tensors)
        return other

    @property
    def _dtypes_named(self) -> list[Any]:
        return [self.config.get("dtype"), self.config.get("torch_dtype")]

    def locate(self, name: str) -> Path:
        """Returns the path of a file of this directory; refuses files outside of it."""
        if not is_file_name(name):
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
        if gguf := gguf_in(self.path):
            return gguf
        if not pickles:
            return f"{self.path} holds neither {SINGLE_FILE} nor {INDEX}"
        out = f"{self.path}-safetensors"
        return about_pickles(str(self.path), pickles[0], self.config, out)

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
