# SPDX-License-Identifier: Apache-2.0
"""Options of formats that keep values as they are or as int8 codes, wherever zeros are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from ..values.quantization import ValueOptions
from ..values.types import VALUE_TYPES


class BitmapOptions(ValueOptions):
    """Options of tiled_bitmap, and of the form that it has on a CPU.

    Attributes:
        values, activations: See `ValueOptions`. Codes are int8, with a scale for each row.
    """

    values: Literal["native", "int8"] = "native"
    activations: Literal["native", "int8"] = "native"

    @model_validator(mode="before")
    @classmethod
    def _have_int8_by_row(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Says what else to do where other formats have more."""
        for option in ("values", "activations"):
            asked = options.get(option)
            if asked in VALUE_TYPES and asked != "int8":
                raise ValueError(
                    f"option {option}: {asked} codes need zeros in a pattern. Remedy: "
                    f"{option}=int8, or the format nm_vector"
                )
        if options.get("group") is not None:
            raise ValueError(
                "option group: codes of zeros anywhere have a scale for each row alone. Remedy: "
                "leave it out, or the format nm_vector"
            )
        return options

    @property
    def title(self) -> str:
        """ "int8", or, of rounded activations, "int8 x int8"; nothing of native values."""
        if self.values == "native":
            return ""
        rounded = "" if self.activations == "native" else f" x {self.activations}"
        return f"{self.values}{rounded}"
