# SPDX-License-Identifier: Apache-2.0
"""What may become of a layer: where its zeros are, and how the kept values are stored."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..formats import get_format, read_format
from ..formats.values.quantization import Quantization
from ..names import DENSE
from ..packed import Scheme
from ..pruning.rounding import rounding_of
from ..pruning.rule import PruningRule


@dataclass(frozen=True)
class Choice:
    """One thing that may become of a layer.

    Attributes:
        title: For people: "2:4, 25% dense, int8".
        rule: How it is pruned; None: it keeps every weight.
        format: As `convert --format` takes it, or "dense".
        options: Of the format, beside those that its name stands for.
    """

    title: str
    rule: PruningRule | None
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def scheme(self, dtype: torch.dtype) -> Scheme | None:
        """How it is packed; None for a dense layer."""
        if self.format == DENSE:
            return None
        name, options = read_format(self.format, self.options)
        return get_format(name).scheme(dtype, options)

    @functools.cached_property
    def rounding(self) -> Quantization | None:
        """The codes that `flashsparse round` rounds it to; None where it leaves it as it is."""
        return None if self.format == DENSE else rounding_of(self.format, self.options)


_TWO_OF_FOUR = (2, 4)
# By title, the rule and the format without its type of values.
_ZEROS: Mapping[str, tuple[PruningRule | None, str]] = {
    "no zeros": (None, "1:1-L128"),
    **{
        f"2:4, {100 * dense:g}% dense": (PruningRule(pattern=_TWO_OF_FOUR, dense=dense), "hybrid")
        for dense in (0.5, 0.25, 0.125)
    },
    "2:4": (PruningRule(pattern=_TWO_OF_FOUR), "2:4"),
    "8:32-L32": (PruningRule(pattern=(8, 32), vector_length=32), "8:32-L32"),
}
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "fp8": {},
    "int8": {},
    "int4": {"group": 64},
    "int4 by 32": {"group": 32},
}

EXACT = (Choice("16 bits", None, DENSE), Choice("exact, 12 bits", None, "lossless"))
"""What loses nothing. A layer that `lossless` refuses has 16 bits."""

CHOICES = EXACT + tuple(
    Choice(f"{zeros}, {values}", rule, f"{format}-{values.split()[0]}", options)
    for zeros, (rule, format) in _ZEROS.items()
    for values, options in _VALUES.items()
)
