# SPDX-License-Identifier: Apache-2.0
"""How the zeros of a model were chosen, as its card says it to people and to programs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Word = Annotated[str, Field(max_length=200, pattern=r"^[^`|<>\x00-\x1f\x7f]*$")]


class Calibration(BaseModel):
    """The text on which a pruning method looked at activations.

    Attributes:
        text: Name of its file.
        sha256: Of the file.
        samples, length, seed: Windows that were drawn of it, tokens a window, and their seed.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: _Word
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    samples: Annotated[int, Field(ge=1)]
    length: Annotated[int, Field(ge=1)]
    seed: int = 0

    @classmethod
    def of(cls, file: Path, samples: int, length: int, seed: int) -> Calibration:
        """Describes windows of a text file."""
        name = "".join(x for x in file.name if x.isprintable() and x not in "`|<>")[:200]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return cls(text=name, sha256=digest, samples=samples, length=length, seed=seed)

    def __str__(self) -> str:
        windows = f"{self.samples} windows of {self.length} tokens, seed {self.seed}"
        return f"`{self.text}`, {windows}; SHA-256 `{self.sha256}`"


class Pruning(BaseModel):
    """How the zeros of a model were chosen.

    Attributes:
        method: Name of the method.
        sparsity: Share of zeros in the layers that were pruned.
        pattern: As "2:4", with the vector length where that is not 1; None where there is none.
        scope: The set among which the least important weights were chosen, if the user named one.
        calibration: None for a method that looks at weights alone.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    method: _Word
    sparsity: Annotated[float, Field(ge=0, le=1)]
    pattern: _Word | None = None
    scope: _Word | None = None
    calibration: Calibration | None = None

    def rows(self) -> list[str]:
        """Rows of a table of two columns."""
        how = [f"`{self.method}`", f"{self.sparsity:.1%} zeros"]
        how += [f"pattern {self.pattern}"] if self.pattern else []
        how += [f"scope {self.scope}"] if self.scope else []
        rows = [f"| Pruned by | {', '.join(how)} |"]
        return rows + ([f"| Calibration text | {self.calibration} |"] if self.calibration else [])
