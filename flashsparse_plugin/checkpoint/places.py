# SPDX-License-Identifier: Apache-2.0
"""Where the files of a model may be, and what may be there instead of one."""

from __future__ import annotations

import re
from pathlib import Path

from .headers import CheckpointError

CONFIG = "config.json"


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


def is_file_name(name: object) -> bool:
    """Whether a value is the name of a file that may be in a directory itself."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        return False
    return len(name.encode(errors="surrogatepass")) <= 255 and name.isprintable()


def refuse_no_model(path: Path) -> None:
    """Raises CheckpointError where there is no model directory, and says what is there instead."""
    if gguf_in(path) is not None and not (path / CONFIG).exists():
        raise CheckpointError(about_gguf(path))
    if not path.is_dir():
        known = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not path.is_absolute()
        name, folder = (str(path), path.name) if known else ("ORGANISATION/NAME", "DIRECTORY")
        raise CheckpointError(
            f"{path} is not a directory. A model is a local directory as transformers saves it; "
            f"one from the Hub is fetched with: hf download {name} --local-dir {folder}"
        )
    if not (path / CONFIG).is_file():
        raise CheckpointError(f"{path} is not a model directory: it has no {CONFIG}")


def gguf_in(path: Path) -> Path | None:
    """A GGUF file: the path itself, or the first in a directory."""
    if path.is_dir():
        return min(path.glob("*.gguf"), default=None)
    return path if path.suffix == ".gguf" and path.is_file() else None


def about_gguf(path: Path) -> str:
    """What to do with a GGUF file that is there instead of a model directory."""
    file = gguf_in(path)
    assert file is not None
    out = file.parent / f"{file.stem}-safetensors"
    return (
        f"{file} is a GGUF file, and only safetensors are read. transformers unpacks it once: "
        'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        f"[C.from_pretrained('{file.parent}', gguf_file='{file.name}').save_pretrained('{out}') "
        'for C in (M, T)]"'
    )
