# SPDX-License-Identifier: Apache-2.0
"""The options of a scheme, and what one says that stores values as codes."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict
from torch import Tensor


class Quantized(Protocol):
    """How a scheme stores values as codes, and what they multiply; `formats.values` brings it.

    Attributes:
        values: The type of the codes, by its name.
        group: Columns of a row that share a scale; None: all of them.
        rounds_activations: Whether activations are rounded to codes, too.
    """

    @property
    def values(self) -> str: ...
    @property
    def group(self) -> int | None: ...
    @property
    def rounds_activations(self) -> bool: ...
    def round_activations(self, x: Tensor) -> Tensor: ...
    def rounded(self, weight: Tensor, packed: Any) -> Tensor: ...
    def linear(self, x: Tensor, scheme: Any, *rest: Any) -> Tensor: ...


class Options(BaseModel):
    """Options of a format that has none; a format with options derives its own.

    Fields are typed and bounded, so that pydantic refuses what is out of bounds or unknown. The
    values are hashable and survive JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    def quantization(self) -> Quantized | None:
        """How values are stored as codes; None: as they are."""
        return None

    @property
    def title(self) -> str:
        """The options for people, in one line."""
        return ", ".join(f"{name}={value}" for name, value in self.model_dump(mode="json").items())
