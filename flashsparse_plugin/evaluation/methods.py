# SPDX-License-Identifier: Apache-2.0
"""What can be made of a dense model in memory, to be compared with it.

A method is written NAME or NAME:OPTION=VALUE:OPTION=VALUE. The names are those of our formats and
of `rivals.RIVALS`. A pattern in short, such as 2:4-int8, is one too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from ..decode_kernels import use_decode_kernels
from ..formats import format_names, get_format, read_format
from ..formats.values.dtypes import fitted, packable_dtype
from ..linear import SparseLinear
from ..modules import bias_of, weight_of
from ..packed import FormatError
from . import sizes
from .rivals import RIVALS


class Method(Protocol):
    """Something that can be made of the linear layers of a dense model.

    Attributes:
        title: What it is, for people.
        dtype: The dtype that a model has to be loaded in; None for any.
        is_timed: Whether its speed here is that of its users.
    """

    @property
    def title(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype | None: ...

    @property
    def is_timed(self) -> bool: ...

    def require(self, device: str) -> None:
        """Raises, before any work starts, where it cannot run on a device ("cpu" or "cuda")."""

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        """Replaces linear layers of a model in place.

        Raises:
            FormatError: For a weight that it cannot hold, with the layer and the reason.
        """


@dataclass(frozen=True)
class Packed:
    """Packs to one of our formats.

    Attributes:
        format: Its name.
        options: Its options.
    """

    format: str
    options: dict[str, Any]
    dtype: torch.dtype | None = None
    is_timed: ClassVar[bool] = True

    @property
    def title(self) -> str:
        own = get_format(self.format)
        return own.scheme(own.dtypes[-1], self.options).title

    def require(self, device: str) -> None:
        """Formats run everywhere."""

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        own = get_format(self.format)
        for name in names:
            linear = model.get_submodule(name)
            weight = weight_of(linear).detach().contiguous()
            scheme = own.scheme(packable_dtype(own, weight.dtype), self.options)
            try:
                made = SparseLinear.pack(fitted(weight, scheme, name), bias_of(linear), scheme)
            except FormatError as error:
                raise FormatError(f"layer {name!r}: {error}") from None
            made.compute_dtype = weight.dtype
            model.set_submodule(name, made)
        use_decode_kernels(model)  # as from_pretrained does


def apply_method(model: nn.Module, method: Method | None) -> tuple[sizes.Sizes, float]:
    """Makes of the linear layers of a dense model what a method says, in place.

    Args:
        model: The model.
        method: What to make of it; None leaves it as it is.

    Returns:
        What the weights of these layers take then, and the share of zeros that they had.

    Raises:
        FormatError: As the method does, for a weight that cannot be that.
    """
    names = sizes.linear_names(model)
    weights = sizes.count(model, names)
    zeros = sizes.zeros(model, names) / weights
    if method is not None:
        method.apply(model, names)
    return sizes.sizes_of(model, names, weights), zeros


def method_names() -> tuple[str, ...]:
    """Names that `parse_method` knows."""
    return (*format_names(), *RIVALS)


def parse_method(text: str) -> Method:
    """Reads NAME[:OPTION=VALUE...].

    Raises:
        ValueError: For a name or an option that there is not, with those that there are.
    """
    short, options = read_format(text.strip())
    if options:
        made = Packed(short, dict(options))
        _ = made.title
        return made
    name, *given = text.strip().split(":")
    options = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not (key.isidentifier() and value):
            raise ValueError(
                f"{each!r} of the method {text!r} is not OPTION=VALUE, such as nm_vector:n=2:m=4"
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value  # a word
    if name in RIVALS:
        return RIVALS[name](**options)
    if name in format_names():
        made = Packed(name, options)
        _ = made.title  # an error here is one of options
        return made
    raise ValueError(f"there is no method {name!r}; there are {', '.join(method_names())}")
