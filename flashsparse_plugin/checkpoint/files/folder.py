# SPDX-License-Identifier: Apache-2.0
"""The files of a model directory: config.json, the index, and the headers of safetensors files.

They are read once, and proven to agree; no weight is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...files import read_bounded
from .explanations import about_pickles
from .headers import CheckpointError, TensorInfo, read_headers
from .places import CONFIG, gguf_in, is_file_name, refuse_no_model, require_inside

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

MAX_CONFIG_BYTES: Final = 16 << 20  # a table of 100,000 layers takes as much
MAX_INDEX_BYTES: Final = 64 << 20  # some 500,000 tensors


def shards_in(home: Path) -> list[Path]:
    """The safetensors files of a directory, and those that its index names, wherever they are."""
    named: set[Path] = set(home.glob("*.safetensors"))
    if (home / INDEX).is_file():
        weight_map = _read_json(home / INDEX, MAX_INDEX_BYTES).get("weight_map")
        files = weight_map.values() if isinstance(weight_map, dict) else ()
        named |= {home / file for file in files if isinstance(file, str)}
    return sorted(named)


def read_config(path: Path) -> dict[str, Any]:
    """The content of the config.json in a directory.

    Raises:
        CheckpointError: Where there is none, or it is no JSON object.
    """
    return _read_json(path / CONFIG, MAX_CONFIG_BYTES)


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


class Folder:
    """The files of a model directory, which agree with each other.

    Attributes:
        path: The directory.
        config: The content of config.json.
        shards: The safetensors files.
        tensors: Header entries by tensor name, in file order and natural order of names.

    Args:
        path: The directory.

    Raises:
        CheckpointError: If a file is missing, damaged, contradictory, outside of the directory, or
            a pickle; the message tells the remedy.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        refuse_no_model(self.path)
        self.config = _read_json(self.locate(CONFIG), MAX_CONFIG_BYTES)
        weight_map = self._weight_map()
        self.shards = tuple(self.locate(name) for name in sorted(set(weight_map.values())))
        self.tensors = self._check_headers(weight_map)

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
