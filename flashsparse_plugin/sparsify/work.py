# SPDX-License-Identifier: Apache-2.0
"""The directory of the stages of a run, `<out>.sparsify`: which are complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..checkpoint.files.headers import CheckpointError
from ..files import read_bounded

WORK: Final = ".sparsify"
"""After the output's name: where the stages are kept until the last one is done."""

STAGES: Final = ("pruned", "fitted", "recovered", "rounded")

_STATE: Final = "state.json"
_MAX_STATE_BYTES: Final = 16 << 20


class Work:
    """The directory of the stages, and what is known of them."""

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        self.path = out.resolve().with_name(out.name + WORK)
        self._job = json.loads(json.dumps(job))  # as it will read back
        self.perplexity: dict[str, float] = {}
        if not self.path.exists():
            self.path.mkdir(parents=True)
        elif not (self.path / _STATE).is_file() or self.path.stat().st_uid != os.geteuid():
            raise CheckpointError(
                f"{self.path} is needed as a working directory and holds something else: move it "
                "away or choose another output"
            )
        try:
            state = json.loads(read_bounded(self.path / _STATE, _MAX_STATE_BYTES))
            same = state["job"] == self._job
            self.perplexity = {str(k): float(v) for k, v in state["perplexity"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            same = False
        if not same:  # of another model, text or rule
            self.perplexity = {}
            for each in self.path.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            self.save()

    def last(self) -> str | None:
        """The latest stage that is complete."""
        done = [name for name in STAGES if (self.path / name).is_dir()]
        return done[-1] if done else None

    def save(self) -> None:
        new = self.path / f"{_STATE}.new"
        new.write_text(json.dumps({"job": self._job, "perplexity": self.perplexity}))
        new.replace(self.path / _STATE)
