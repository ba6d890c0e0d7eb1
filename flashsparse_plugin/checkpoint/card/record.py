# SPDX-License-Identifier: Apache-2.0
"""How a model was pruned, recovered and rounded, as its card tells people and programs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

_Word = Annotated[str, Field(max_length=200, pattern=r"^[^`|<>\x00-\x1f\x7f]*$")]


def word(name: str) -> str:
    """The name of a file or model, as a card takes it."""
    return "".join(x for x in name if x.isprintable() and x not in "`|<>")[:200]


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
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return cls(text=word(file.name), sha256=digest, samples=samples, length=length, seed=seed)

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


class Recovery(BaseModel):
    """How the weights that pruning kept make up for the others.

    Attributes:
        method: How they were changed.
        dense: Name of the dense model.
        before: With least squares the mean over layers of |W' X - W X|^2 / |W X|^2 of the pruned
            weight W' and the dense one W on the calibration text X. With LoRA the divergence of
            the next-token distribution from the dense model's, in nats a token.
        after: The same of the recovered weights.
        calibration: The text.
        rank, steps: Of LoRA.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    method: Literal["least-squares", "lora"] = "least-squares"
    dense: _Word
    before: Annotated[float, Field(ge=0)]
    after: Annotated[float, Field(ge=0)]
    calibration: Calibration
    rank: Annotated[int, Field(ge=1)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None

    def rows(self) -> list[str]:
        """Rows of a table of two columns."""
        if self.method == "lora":
            how = f"LoRA of rank {self.rank}, {self.steps} steps, to the predictions"
            far = f"divergence {self.before:.3g} before, {self.after:.3g} after, in nats a token"
        else:
            how = "least squares to the layers"
            far = f"mean error {100 * self.before:.3g}% before, {100 * self.after:.3g}% after"
        return [
            f"| Recovered by | {how} of `{self.dense}`, {far} |",
            f"| Recovery text | {self.calibration} |",
        ]


class Rounding(BaseModel):
    """How weights were rounded to codes, so that packing loses nothing more.

    Attributes:
        format: As `convert --format` takes it, and options; "by layer" of a recipe.
        before: The mean over layers of |W' X - W X|^2 / |W X|^2 of the nearest codes W' and the
            weight W before, on the calibration text X.
        after: The same of the codes that were taken.
        calibration: The text.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: _Word
    before: Annotated[float, Field(ge=0)]
    after: Annotated[float, Field(ge=0)]
    calibration: Calibration

    def rows(self) -> list[str]:
        """Rows of a table of two columns."""
        errors = f"{100 * self.after:.3g}%, {100 * self.before:.3g}% by the nearest codes"
        return [
            f"| Rounded for | `{self.format}` (GPTQ), mean error {errors} |",
            f"| Rounding text | {self.calibration} |",
        ]


Record = Pruning | Recovery | Rounding
RECORDS: Final[Mapping[str, type[Record]]] = {
    "pruning": Pruning,
    "recovery": Recovery,
    "rounding": Rounding,
}
"""What a card may have in its metadata, by the key there."""
