# SPDX-License-Identifier: Apache-2.0
"""A recipe: by layer its zeros and its format, for `prune`, `round` and `convert` to execute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..formats import get_format, read_format
from ..formats.values.quantization import Quantization
from ..messages import one_line
from ..names import DENSE
from ..pruning.rounding import rounding_of
from ..pruning.rule import PruningRule
from .losses import Measured

MOST_BYTES = 1 << 26  # of a file; a layer takes some 200
_Name = Annotated[str, Field(max_length=1000)]


class LayerRecipe(BaseModel):
    """What becomes of a layer.

    Attributes:
        pattern: N and M; None: every weight is kept.
        vector_length: Rows that share a pattern.
        dense: Share of 16x256 blocks that stay dense beside 2:4.
        format: As `convert --format` takes it, or "dense".
        options: Of the format.
        bits: A weight, for people.
        loss: In nats a token, estimated; for people.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: tuple[int, int] | None = None
    vector_length: int = 1
    dense: float = 0.0
    format: str
    options: dict[str, Any] = {}
    bits: float
    loss: float

    @model_validator(mode="after")
    def _can_be(self) -> LayerRecipe:
        _ = self.rule
        if self.format != DENSE:
            name, options = read_format(self.format, self.options)
            format = get_format(name)
            format.scheme(format.dtypes[-1], options)
        return self

    @property
    def rule(self) -> PruningRule | None:
        """How it is pruned; None: not at all."""
        if self.pattern is None and not self.dense:
            return None
        return PruningRule(pattern=self.pattern, vector_length=self.vector_length, dense=self.dense)


class Recipe(BaseModel):
    """A model of so many bits a weight.

    Attributes:
        flashsparse_recipe: The version of the file.
        model: What it was made for, for people.
        method: How zeros are chosen.
        bits: A weight, over the layers.
        layers: By name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    flashsparse_recipe: Literal[1] = 1
    model: str
    method: str
    bits: float
    layers: Annotated[dict[_Name, LayerRecipe], Field(min_length=1, max_length=100_000)]

    @classmethod
    def of(
        cls,
        model: str,
        method: str,
        chosen: Mapping[str, Measured],
        shapes: Mapping[str, tuple[int, int]],
    ) -> Recipe:
        """The recipe of what was chosen for layers of some shapes."""
        layers, elements = {}, {name: rows * cols for name, (rows, cols) in shapes.items()}
        for name, own in chosen.items():
            rule = own.choice.rule
            zeros: dict[str, Any] = {}
            if rule is not None:
                zeros = {"pattern": rule.pattern, "vector_length": rule.vector_length}
                zeros["dense"] = rule.dense
            layers[name] = LayerRecipe(
                **zeros,
                format=own.choice.format,
                options=dict(own.choice.options),
                bits=round(8 * own.nbytes / elements[name], 4),
                loss=own.loss,
            )
        whole = sum(own.nbytes for own in chosen.values())
        bits = 8 * whole / sum(elements[name] for name in chosen)
        return cls(model=model, method=method, bits=round(bits, 4), layers=layers)

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """Reads a file.

        Raises:
            ValueError: With the first of its mistakes.
        """
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} has more than {MOST_BYTES} bytes: it is no recipe")
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            said = one_line(f"{where}: {first['msg']}" if where else first["msg"])
        except (ValueError, RecursionError) as error:
            said = one_line(str(error))
        raise ValueError(f"{path} is no recipe ({said}). Remedy: make one with `flashsparse fit`")

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1, exclude_defaults=False) + "\n")

    @property
    def rules(self) -> dict[str, PruningRule]:
        """How to prune, by layer; those that keep every weight are left out."""
        found = {name: layer.rule for name, layer in self.layers.items()}
        return {name: rule for name, rule in found.items() if rule is not None}

    @property
    def formats(self) -> dict[str, dict[str, Any]]:
        """How to pack, by layer, as `convert_checkpoint` takes it."""
        found: dict[str, dict[str, Any]] = {}
        for name, layer in self.layers.items():
            if layer.format == DENSE:
                found[name] = {"format": DENSE, "reason": "recipe"}
                continue
            format, options = read_format(layer.format, layer.options)
            found[name] = {"format": format, "options": dict(options)}
        return found

    @property
    def roundings(self) -> dict[str, Quantization]:
        """How to round, by layer, as `round_` takes it; those that have no 4 bits are left out."""
        packed = {name: layer for name, layer in self.layers.items() if layer.format != DENSE}
        found = {name: rounding_of(own.format, own.options) for name, own in packed.items()}
        return {name: each for name, each in found.items() if each is not None}
