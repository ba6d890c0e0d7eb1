# SPDX-License-Identifier: Apache-2.0
"""The files of a model directory beside the weights: configuration, index, tokenizer, licence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.folder import INDEX, PICKLES, SINGLE_FILE
from ..files.headers import CheckpointError
from ..files.places import CONFIG, is_file_name
from ..read.directory import ModelDirectory
from .report import human

CARD = "README.md"

_CARRIED_SUFFIXES = (".json", ".jinja", ".txt", ".md", ".model", ".tiktoken", ".py")
_CARRIED_NAMES = ("LICENSE", "NOTICE", "USE_POLICY")
_CARRIED_FOLDERS = ("additional_chat_templates",)
_CARRIED_MAX_BYTES = 100_000_000
_NEVER_CARRIED = (*PICKLES, ".safetensors", ".index.json")
_WRITTEN_ANEW = (CONFIG, INDEX, SINGLE_FILE)


def carry_files(directory: ModelDirectory, out: Path) -> list[str]:
    """Copies tokenizer, generation config, chat templates, licence, card and the like.

    A file that is in `out` already stays. What a link out of the directory leads to is not copied.

    Args:
        directory: The model directory to copy from.
        out: The directory to copy to.

    Returns:
        Warnings about files that seem to belong to the model and were not copied.
    """
    warnings = []
    for path in sorted(directory.path.iterdir()):
        name = path.name
        if name in _CARRIED_FOLDERS and path.is_dir() and not path.is_symlink():
            _carry_templates(path, out / name)
        if not is_carried(name):
            continue
        if (out / name).exists():
            continue
        try:
            found = directory.locate(name)
        except CheckpointError as error:
            warnings.append(f"{name} was not copied: {error}.")
            continue
        if found.stat().st_size > _CARRIED_MAX_BYTES:
            warnings.append(f"{name} was not copied: {human(found.stat().st_size)} is too large.")
            continue
        shutil.copyfile(found, out / name)
    return warnings


def is_carried(name: str) -> bool:
    """Whether a file beside the weights belongs to the model, by its name or path."""
    folder, _, file = name.rpartition("/")
    if folder:
        return folder in _CARRIED_FOLDERS and file.endswith(".jinja")
    wanted = Path(name).suffix in _CARRIED_SUFFIXES or name.split(".")[0].upper() in _CARRIED_NAMES
    anew = name.endswith(_NEVER_CARRIED) or name in _WRITTEN_ANEW or name[0] == "."
    return wanted and not anew and is_file_name(name)


def _carry_templates(source: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for template in sorted(source.glob("*.jinja")):
        if template.is_file() and not template.is_symlink():
            shutil.copyfile(template, out / template.name)


def name_shards(folder: Path, shards: Sequence[Mapping[str, Any]]) -> None:
    """Gives finished shards (their "file" and "tensors") their final names, and writes the index.

    Names contain the number of shards, which is known only after the last one.
    """
    count = len(shards)
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    if count == 1:
        names = [SINGLE_FILE]
    weight_map = {}
    for shard, name in zip(shards, names, strict=True):
        (folder / shard["file"]).rename(folder / name)
        weight_map.update(dict.fromkeys(shard["tensors"], name))
    if count > 1:
        size = sum(sum(shard["tensors"].values()) for shard in shards)
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
