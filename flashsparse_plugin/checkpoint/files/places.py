# SPDX-License-Identifier: Apache-2.0
"""Where the files of a model may be, and what may be there instead of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .explanations import about_gguf, about_nothing
from .headers import CheckpointError

CONFIG: Final = "config.json"

_CACHED: Final = "models--"  # a model's directory in the Hub's cache: its name follows


def require_inside(path: Path, home: Path) -> None:
    """Raises CheckpointError unless a path is a regular file inside of a model directory.

    A link may lead to the shared blobs of the Hub's cache, whose snapshots consist of links.
    """
    require_file(path)
    found = path.resolve()
    if not any(found.is_relative_to(place) for place in _homes(home.resolve())):
        what = "is a link that leads out of" if path.is_symlink() else "is outside of"
        raise CheckpointError(
            f"{path} {what} the model directory, to {found}: copy the file into the "
            "directory if you trust it"
        )


def require_file(path: Path) -> None:
    """Raises CheckpointError for what is no regular file, or no link to one."""
    try:
        is_file = path.is_file()
    except OSError:  # a name that is too long
        is_file = False
    if not is_file:
        raise CheckpointError(
            f"{path.name[:255]} is missing in {path.parent}, or no regular file: fetch the model "
            "again"
        )


def _homes(home: Path) -> Iterator[Path]:
    """A model directory, and for one in the Hub's cache (or below one) the blobs it links to."""
    yield home
    for snapshot in (home, *home.parents):
        model = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and model.name.startswith(_CACHED):
            yield model / "blobs"


def is_file_name(name: object) -> bool:
    """Whether a value is the name of a file that may be in a directory itself."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        return False
    return len(name.encode(errors="surrogatepass")) <= 255 and name.isprintable()


def refuse_no_model(path: Path) -> None:
    """Raises CheckpointError where there is no model directory, and says what is there instead."""
    gguf = gguf_in(path)
    if gguf is not None and not (path / CONFIG).exists():
        raise CheckpointError(gguf)
    if not path.is_dir():
        raise CheckpointError(about_nothing(str(path)))
    if not (path / CONFIG).is_file():
        raise CheckpointError(f"{path} is not a model directory: it has no {CONFIG}")


def gguf_in(path: Path) -> str | None:
    """What to do with a GGUF file: the path itself, or the first in a directory; None for none."""
    if path.is_dir():
        file = min(path.glob("*.gguf"), default=None)
    else:
        file = path if path.suffix == ".gguf" and path.is_file() else None
    if file is None:
        return None
    return about_gguf(str(file.parent), file.name, str(file.parent / f"{file.stem}-safetensors"))


def name_of(path: Path) -> str:
    """What people call the model in a directory: its name on the Hub, or that of the directory."""
    return hub_name(path) or path.name or path.resolve().name


def hub_name(path: Path) -> str | None:
    """The name on the Hub of the model in a directory of the Hub's cache; None elsewhere."""
    cached = path.parent.parent
    if path.parent.name == "snapshots" and cached.name.startswith(_CACHED):
        return cached.name.removeprefix(_CACHED).replace("--", "/", 1)
    return None
