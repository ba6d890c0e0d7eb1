# SPDX-License-Identifier: Apache-2.0
"""Staging: a directory that appears atomically.

Files are written into `<out>.partial` beside the output, which takes the output's place at the end.
Finished shards are noted in a state file, so that a killed run resumes; what the file claims is for
the caller to verify. Until the end the partial directory has neither config.json nor an index, so
that nothing mistakes it for a model. A run that was killed while it replaced a model is completed,
or undone, by the next one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...files import read_bounded
from ..files.headers import CheckpointError
from ..files.places import CONFIG
from ..read.directory import ModelDirectory
from .report import LayerReport
from .writer import digest_of

logger = logging.getLogger(__name__)

STATE = ".flashsparse-conversion.json"
_UNFINISHED: Final = STATE + ".new"
"""A state that is being written, or was when a run was killed."""

_MAX_STATE_BYTES: Final = 256 << 20
_Count = Annotated[int, Field(ge=0)]


class _Shard(BaseModel):
    """What a state file may say of a finished shard."""

    model_config = ConfigDict(extra="forbid", strict=True)

    file: Annotated[str, Field(pattern=r"^part-[0-9]{5}\.safetensors$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    end: _Count
    tensors: dict[str, _Count]
    rounded: _Count
    layers: list[LayerReport]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")

    job: dict[str, Any]
    finished: list[_Shard]


class Staging:
    """The partial directory of one conversion; a context manager that holds its lock.

    Attributes:
        path: The partial directory.
        finished: One JSON-able dict per finished shard. Of an earlier run's only the digests were
            compared with the files: whoever goes on with them verifies the rest, and drops what is
            not true by `keep`.

    Args:
        out: The directory to make.
        job: What is converted and how, JSON-able; only a run of the same job is resumed.
        overwrite: Whether to replace an existing model directory at `out`.
        latest_only: Each shard that is added takes the place of the one before, which is removed
            once the new one is noted. They are called by the first two numbers in turn.

    Raises:
        CheckpointError: If `out` must not be written.
    """

    def __init__(
        self,
        out: str | Path,
        job: dict[str, Any],
        overwrite: bool = False,
        latest_only: bool = False,
    ):
        self.out = Path(out).resolve()
        self.path = self.out.with_name(self.out.name + ".partial")
        self.job = json.loads(json.dumps(job))  # as it will read back
        self.finished: list[dict[str, Any]] = []
        self.overwrite, self.latest_only = overwrite, latest_only
        self._lock = -1

    def __enter__(self) -> Staging:
        self._lock = self._open()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover()
            self._check_out()
            self._resume()
        except BlockingIOError:
            os.close(self._lock)
            raise CheckpointError(
                f"another conversion is writing {self.path}: wait for it, or choose another output"
            ) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()
        os.close(self._lock)

    def add(self, shard: dict[str, Any]) -> None:
        """Notes a finished shard, which a resumed run then keeps."""
        if self.latest_only:
            self.finished.clear()
        self.finished.append(shard)
        self._save()
        if self.latest_only:
            self._clear({shard["file"]})

    def next_name(self) -> str:
        """The name of the next shard to add, until the number of shards is known."""
        if self.latest_only:
            names = [part_name(1), part_name(2)]
            return names[bool(self.finished) and self.finished[0]["file"] == names[0]]
        return part_name(len(self.finished) + 1)

    def keep(self, count: int) -> None:
        """Drops all finished shards but the first `count`."""
        del self.finished[count:]
        self._clear({shard["file"] for shard in self.finished})
        self._save()

    def commit(self) -> None:
        """Turns the partial directory into the output, which is at any time the old or the new."""
        self._check_out()
        for path in [*self.path.rglob("*"), self.path]:
            _flush(path)
        replaced = self.path if self.out.exists() else None
        if replaced is None:
            self.path.rename(self.out)
        elif not _exchange(self.path, self.out):
            replaced = self.out.with_name(f"{self.out.name}.replaced-{os.getpid()}")
            self.out.rename(replaced)  # killed here, the next run renames it back
            self.path.rename(self.out)
        _flush(self.out.parent)
        if replaced is not None:
            shutil.rmtree(replaced)
        (self.out / STATE).unlink()

    def discard(self) -> None:
        """Removes the partial directory."""
        shutil.rmtree(self.path)

    def _open(self) -> int:
        """Makes the partial directory and opens it; refuses one that another user could change."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            opened = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG):  # as in /proc
                raise CheckpointError(
                    f"{self.path} cannot be made ({error.strerror}): choose another output"
                ) from None
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
                raise
            raise CheckpointError(f"{self.path} is in the way: it is not a directory") from None
        owner = os.fstat(opened).st_uid
        if owner != os.geteuid():
            os.close(opened)
            raise CheckpointError(
                f"{self.path} belongs to another user (number {owner}), and what is in it would "
                "become part of the model: remove it or choose another output"
            )
        return opened

    def _recover(self) -> None:
        """Ends what a run left that was killed while it replaced the output."""
        for path in self._leftovers():
            if path.name.startswith(self.out.name) and not self.out.exists():
                logger.warning("restored %s, which an interrupted run had moved away", self.out)
                path.rename(self.out)
            else:
                logger.warning("removing %s, left by an interrupted run", path)
                shutil.rmtree(path)
        if not (self.out / STATE).is_file():
            return
        if not (self.path / STATE).exists():  # it is the model that was replaced
            logger.warning("removing %s, the old model that an interrupted run replaced", self.path)
            self._clear(set())
        (self.out / STATE).unlink()

    def _leftovers(self) -> list[Path]:
        """Directories of ours beside the output that only a killed run leaves.

        `.<out>.<8 letters>` with nothing but a folder `model` in it is one of `prune` in 0.1.
        """
        replaced = re.compile(re.escape(self.out.name) + r"\.replaced-[0-9]+")
        pruned = re.compile(rf"\.{re.escape(self.out.name)}\.[a-z0-9_]{{8}}")
        found = []
        for path in sorted(self.out.parent.iterdir()):
            if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
                continue
            if pruned.fullmatch(path.name):
                ours = [each.name for each in path.iterdir()] == ["model"]
            else:
                ours = bool(replaced.fullmatch(path.name)) and (path / CONFIG).is_file()
            if ours:
                found.append(path)
        return found

    def _check_out(self) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise CheckpointError(
                f"{self.out} exists and is not a directory: choose another output"
            )
        if not any(self.out.iterdir()):
            return
        if not self.overwrite:
            raise CheckpointError(
                f"{self.out} exists and is not empty: choose another output, or replace it with "
                "--overwrite (overwrite=True)"
            )
        if not (self.out / CONFIG).is_file():
            raise CheckpointError(
                f"{self.out} holds no {CONFIG}, so it is not a model directory, and will not be "
                "overwritten: choose another output"
            )

    def _resume(self) -> None:
        state_file = self.path / STATE
        if not state_file.exists():
            if any(path.name != _UNFINISHED for path in self.path.iterdir()):
                raise CheckpointError(
                    f"{self.path} is needed as a working directory and holds other files: "
                    "move them away or choose another output"
                )
            self._clear(set())
            self._save()
            return
        try:
            state = _State.model_validate_json(read_bounded(state_file, _MAX_STATE_BYTES))
        except (OSError, ValidationError):
            state = _State(job={}, finished=[])
        if state.job != self.job:
            logger.info("%s belongs to another conversion: starting over", self.path)
            state.finished.clear()
        for number, shard in enumerate(state.finished, start=1):
            path = self.path / shard.file
            damaged = path.is_symlink() or not path.is_file() or digest_of(path) != shard.digest
            names = {part_name(1), part_name(2)} if self.latest_only else {part_name(number)}
            if damaged or shard.file not in names:
                break  # the shards after it were written later, and are written again, too
            self.finished.append(shard.model_dump())
        self.keep(len(self.finished))

    def _clear(self, keep: set[str]) -> None:
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in keep and path.name != STATE:
                path.unlink()

    def _save(self) -> None:
        new = self.path / _UNFINISHED
        try:
            new.write_text(json.dumps({"job": self.job, "finished": self.finished}))
        except OSError:
            new.unlink(missing_ok=True)
            raise
        new.replace(self.path / STATE)


def identity(directory: ModelDirectory) -> dict[str, list[str | int]]:
    """What tells whether the weights of a model are still those of an earlier run, JSON-able."""
    files: dict[str, list[str | int]] = {}
    for path in directory.shards:
        stat = path.stat()
        files[path.name] = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    return files


def part_name(number: int) -> str:
    """The name that the shard of a number, from 1, has until the number of shards is known."""
    return f"part-{number:05}.safetensors"


def _flush(path: Path) -> None:
    """Returns when a file's content, or a directory's names, would survive a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two directories atomically; False where the system cannot."""
    at_cwd, exchange = -100, 2
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
