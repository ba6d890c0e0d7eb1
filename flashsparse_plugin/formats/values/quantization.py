# SPDX-License-Identifier: Apache-2.0
"""Quantized values as a part of a scheme: their type, their scales, and what codes multiply."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from ...ops.packed_linear import X_SCALES
from ...packed import Format, FormatError, Options, PackedWeight, Scheme, TensorSpec, dtype_name
from ...plan import Plan
from . import types
from .activations import codes_in_16_bits, multiply_rounded, rounded_tokens, takes_16_bits
from .types import VALUE_TYPES, ValueType, scale_count, scale_dtype, spread_scales

SCALE = "weight_scale"
"""The tensor with the scales of codes."""

_UNSAID = {"values": "native", "group": None, "activations": "native"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quantization:
    """How a scheme stores values as codes with scales.

    Attributes:
        type: The type of the codes.
        group: Columns of a row that share a scale; None: all of them.
        activations: The type that activations are rounded to, by token, before they are multiplied;
            None: they are not rounded.
    """

    type: ValueType
    group: int | None = None
    activations: ValueType | None = None

    @property
    def values(self) -> str:
        """The name of the type."""
        return self.type.name

    @property
    def rounds_activations(self) -> bool:
        return self.activations is not None

    # ---- weights --------------------------------------------------------------------------------

    def conform(self, weight: Tensor) -> Tensor:
        """A weight like the given one that codes hold exactly; see `types.to_codes`."""
        return types.to_codes(weight, self.type, self.group)

    def quantise(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Codes as float16 numbers, and scales; see `types.quantise`."""
        return types.quantise(weight, self.type, self.group)

    def rounded(self, weight: Tensor, packed: PackedWeight) -> Tensor:
        """The nearest codes by the scales of a packed weight, times these."""
        scales = packed.tensors[SCALE].to(weight.device).float()
        scales = spread_scales(scales, packed.shape[1], self.group)
        return (self.type.round(weight.float() / scales) * scales).to(packed.dtype)

    def scale_spec(self, dtype: torch.dtype, shape: tuple[int, int]) -> TensorSpec:
        """What the scales of a weight look like where they have a tensor of their own."""
        count = scale_count(shape[1], self.group)
        return TensorSpec(scale_dtype(dtype, self.group), (shape[0], count))

    def require_scales(self, scales: Tensor, dtype: torch.dtype, where: str = SCALE) -> None:
        """Raises FormatError for scales by which a product would overflow, or be no number."""
        types.require_scales(scales, self.type, dtype, where)

    def require_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Proves what `Format.pack_codes` is given.

        Returns:
            Codes as float16 numbers, which hold every code, and scales in the dtype that the scheme
            stores them in.

        Raises:
            FormatError: As `Format.pack_codes` does.
        """
        if codes.dtype == torch.uint8:
            codes = codes.view(torch.float8_e4m3fn)
        numbers = codes.to(torch.float16)
        if not torch.equal(self.type.round(numbers.float()), numbers.float()):
            raise FormatError(
                f"codes of a [{', '.join(map(str, codes.shape))}] weight are no "
                f"{self.type.name} numbers"
            )
        wanted = self.scale_spec(scheme.dtype, (codes.shape[0], codes.shape[1]))
        if tuple(scales.shape) != wanted.shape:
            raise FormatError(f"{SCALE} must be {list(wanted.shape)}, not {list(scales.shape)}")
        self.require_scales(scales, scheme.dtype)
        stored = scales.to(wanted.dtype)
        if not torch.equal(stored.to(scales.dtype), scales):
            raise FormatError(
                f"{SCALE} of {dtype_name(scales.dtype)} does not survive in "
                f"{dtype_name(wanted.dtype)}, in which a {scheme} weight keeps it. Remedy: load "
                f"the model in {dtype_name(scales.dtype)}"
            )
        return numbers, stored

    # ---- activations ----------------------------------------------------------------------------

    def round_activations(self, x: Tensor) -> Tensor:
        return x if self.activations is None else rounded_tokens(x, self.activations)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`Format.linear`, of activations that are rounded to codes first."""
        format, values = scheme.format, self.activations
        assert values is not None
        if x.dtype == scheme.dtype and format.multiplies_codes(scheme, x.device):
            return format.multiply_codes(x, scheme, shape, tensors, bias, plan)
        if takes_16_bits(x, scheme.dtype):
            codes, scales = codes_in_16_bits(x, values)
            scaled = {**tensors, X_SCALES: scales}
            y = format.multiply(codes, scheme, shape, scaled, bias, plan)
            if not x.requires_grad:
                return y
            straight = format.multiply(x, scheme, shape, tensors, bias, plan)
            return y.detach() + (straight - straight.detach())  # plus zero, with the gradient
        return multiply_rounded(
            x,
            values,
            bias,
            lambda codes: format.multiply(codes, scheme, shape, tensors, None, plan),
        )


class ValueOptions(Options):
    """Options of a format whose values may be quantized.

    Attributes:
        values: How kept values are stored: as they are (native), or as codes with scales.
        group: Columns of a row that share a scale of codes; None: all of them.
        activations: What activations are rounded to, by token, before they are multiplied. It is
            native, which rounds nothing, or the type of the values.
    """

    if TYPE_CHECKING:  # fields of the formats' own options, in an order of their own
        values: types.Values
        activations: types.Activations

    @model_validator(mode="after")
    def _be_rounded_alike(self) -> ValueOptions:
        if self.activations not in ("native", self.values):
            raise ValueError(
                f"option activations: {self.activations} activations are multiplied by "
                f"{self.activations} values alone, and these are {self.values}. Remedy: "
                f"values={self.activations}, or activations=native"
            )
        return self

    @model_serializer(mode="wrap")
    def _leave_native_out(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Writes what releases without value types read, where there is none."""
        options: dict[str, Any] = plain(self)
        return {
            name: value
            for name, value in options.items()
            if name not in _UNSAID or value != _UNSAID[name]
        }

    @property
    def value_type(self) -> ValueType | None:
        """The type of codes; None where values are stored as they are."""
        return VALUE_TYPES.get(self.values)

    @property
    def quantization(self) -> Quantization | None:
        found = self.value_type
        group = getattr(self, "group", None)
        if found is None:
            return None
        return Quantization(found, group, VALUE_TYPES.get(self.activations))


def quantization_of(scheme: Scheme) -> Quantization | None:
    """How a scheme stores values as codes; None: as they are."""
    found = scheme.quantization
    assert found is None or isinstance(found, Quantization)
    return found


def require_quantized(scheme: Scheme) -> Quantization:
    """How a scheme stores values as codes.

    Raises:
        FormatError: Where it stores them as they are.
    """
    found = quantization_of(scheme)
    if found is None:
        raise FormatError(f"{scheme} has native values, which are no codes: use pack")
    return found


def packs_codes(format: Format) -> bool:
    """Whether a format packs codes as another tool made them, of some type."""
    return issubclass(format.Options, ValueOptions)


def tell_of_activations(scheme: Scheme, device: torch.device) -> None:
    """Logs once what becomes of activations that are rounded, where they have no kernel."""
    found = quantization_of(scheme)
    if found and found.activations and not scheme.format.multiplies_codes(scheme, device):
        _tell_of_activations(scheme.format.name, found.activations.name, device.type)


@functools.cache
def _tell_of_activations(form: str, activations: str, device: str) -> None:
    logger.info(
        "activations are rounded to %s per token, and multiplied in %s: %s has no W8A8 kernel on "
        "this %s device",
        *(activations, "32 bits" if device == "cpu" else "16 bits", form, device),
    )
