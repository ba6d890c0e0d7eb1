# SPDX-License-Identifier: Apache-2.0
"""Staging: a directory that appears atomically.

Files are written into `<out>.partial` beside the output, which is renamed at the end. Finished
shards are noted in a state file, so that a killed run resumes. Until the end the partial directory
has neither config.json nor an index, so that nothing mistakes it for a model.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from .reader import CONFIG, CheckpointError
from .writer import digest_of

logger = logging.getLogger(__name__)

STATE = ".flashsparse-conversion.json"


class Staging:
    """The partial directory of one conversion; a context manager that holds its lock.

    Attributes:
        path: The partial directory.
        finished: One JSON-able dict per finished shard, with at least "file" and "digest".

    Args:
        out: The directory to make.
        job: What is converted and how, JSON-able; only a run of the same job is resumed.
        overwrite: Whether to replace an existing model directory at `out`.

    Raises:
        CheckpointError: If `out` must not be written.
    """

    def __init__(self, out: str | Path, job: dict[str, Any], overwrite: bool = False):
        self.out = Path(out).resolve()
        self.path = self.out.with_name(self.out.name + ".partial")
        self.job = json.loads(json.dumps(job))  # as it will read back
        self.finished: list[dict[str, Any]] = []
        self.overwrite = overwrite
        self._lock = -1

    def __enter__(self) -> Staging:
        self._check_out()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise CheckpointError(f"{self.path} is in the way: it is not a directory") from None
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._resume()
        except BlockingIOError:
            self.__exit__()
            raise CheckpointError(
                f"another conversion is writing {self.path}: wait for it, or choose another output"
            ) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._lock)

    def add(self, shard: dict[str, Any]) -> None:
        """Notes a finished shard, which a resumed run then keeps."""
        self.finished.append(shard)
        self._save()

    def commit(self) -> None:
        """Turns the partial directory into the output."""
        self._check_out()
        old = self.out.with_name(f"{self.out.name}.replaced-{os.getpid()}")
        replacing = self.out.exists()
        if replacing:
            self.out.rename(old)
        try:
            self.path.rename(self.out)
        except OSError:
            if replacing:
                old.rename(self.out)
            raise
        (self.out / STATE).unlink()
        if replacing:
            shutil.rmtree(old)

    def discard(self) -> None:
        """Removes the partial directory."""
        shutil.rmtree(self.path)

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
            if any(self.path.iterdir()):
                raise CheckpointError(
                    f"{self.path} is needed as a working directory and holds other files: "
                    "move them away or choose another output"
                )
            self._save()
            return
        try:
            state = json.loads(state_file.read_text())
            finished = state["finished"] if state["job"] == self.job else None
        except (json.JSONDecodeError, KeyError, TypeError):
            finished = None
        if finished is None:
            logger.info("%s belongs to another conversion: starting over", self.path)
        for shard in finished or []:
            path = self.path / shard["file"]
            if not path.is_file() or digest_of(path) != shard["digest"]:
                break  # the shards after it were written later, and are written again, too
            self.finished.append(shard)
        self._clear({shard["file"] for shard in self.finished})
        self._save()

    def _clear(self, keep: set[str]) -> None:
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in keep and path.name != STATE:
                path.unlink()

    def _save(self) -> None:
        new = self.path / (STATE + ".new")
        new.write_text(json.dumps({"job": self.job, "finished": self.finished}))
        new.replace(self.path / STATE)
