# SPDX-License-Identifier: Apache-2.0
"""Options of hybrid_24 and of the form that it has on a CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from ....packed import FormatError, Scheme
from ...values.quantization import ValueOptions
from ...values.types import GROUPS, Values
from ..options import NAMED_VALUES


class HybridOptions(ValueOptions):
    """How kept values are stored; which units are dense, the tensors say.

    Attributes:
        values, group: See `ValueOptions`.
        activations: Not rounded: no kernel multiplies quantized activations by this format.
    """

    values: Values = "native"
    group: int | None = None
    activations: Literal["native"] = "native"

    @model_validator(mode="after")
    def _have_groups_of_codes(self) -> HybridOptions:
        if self.group is None:
            return self
        if self.values == "native":
            raise ValueError("option group: native values have no scales. Remedy: values=int8")
        if self.group not in GROUPS:
            raise ValueError(f"option group: {self.group} must be {', '.join(map(str, GROUPS))}")
        return self

    @property
    def title(self) -> str:
        """ "int8 by 128"; nothing of native values."""
        if self.values == "native":
            return ""
        return f"{self.values} by {self.group}" if self.group else self.values


def hybrid_options(scheme: Scheme) -> HybridOptions:
    """The options of a scheme of hybrid_24, or of its form on a CPU."""
    assert isinstance(scheme.options, HybridOptions)
    return scheme.options


def options_named(text: str) -> Mapping[str, Any] | None:
    """Reads "hybrid" and "hybrid-VALUES"; None for what begins otherwise.

    Raises:
        FormatError: For values of an unknown type.
    """
    found = re.fullmatch(r"hybrid(?:-(\w+))?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        return None
    if found[1] is None:
        return {}
    values = NAMED_VALUES.get(found[1].lower())
    if values is None:
        known = ", ".join(f"hybrid-{key}" for key in NAMED_VALUES if key.isalnum())
        raise FormatError(f"{text!r} is no format: write hybrid, {known}")
    return {"values": values}
