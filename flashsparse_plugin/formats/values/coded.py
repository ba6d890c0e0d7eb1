# SPDX-License-Identifier: Apache-2.0
"""Formats whose schemes say of what type values are: as they are, or codes with scales."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from ...ops.packed_linear import X_SCALES
from ...packed import Format, FormatError, Options, PackedWeight, Scheme, dtype_name
from ...plan import Plan
from .activations import codes_in_16_bits, multiply_rounded, rounded_tokens, takes_16_bits
from .types import (
    VALUE_TYPES,
    ValueType,
    require_scales,
    scale_count,
    scale_dtype,
    spread_scales,
)

SCALE = "weight_scale"
"""The tensor with the scales of codes."""

_UNSAID = {"values": "native", "group": None, "activations": "native"}

logger = logging.getLogger(__name__)


class ValueOptions(Options):
    """Options of a format whose values have a type.

    Attributes:
        values: How kept values are stored: as they are (native), or as codes with scales.
        group: Columns of a row that share a scale of codes; None: all of them.
        activations: What activations are rounded to, by token, before they are multiplied. It is
            native, which rounds nothing, or the type of the values.
    """

    if TYPE_CHECKING:  # fields of the formats' own options, in an order of their own
        values: str
        activations: str

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
    def scale_group(self) -> int | None:
        """Columns of a row that share a scale of codes; None: all of them."""
        return None

    @property
    def value_type(self) -> ValueType | None:
        """The type of codes; None where values are stored as they are."""
        return VALUE_TYPES.get(self.values)

    @property
    def activation_type(self) -> ValueType | None:
        """The type of codes that activations are rounded to; None where they are not rounded."""
        return VALUE_TYPES.get(self.activations)


def value_options(scheme: Scheme) -> ValueOptions:
    """The options of a scheme whose values have a type."""
    assert isinstance(scheme.options, ValueOptions)
    return scheme.options


def value_type_of(scheme: Scheme) -> ValueType | None:
    """The type of a scheme's codes; None where values are stored as they are."""
    return scheme.options.value_type if isinstance(scheme.options, ValueOptions) else None


def activation_type_of(scheme: Scheme) -> ValueType | None:
    """The type that activations are rounded to; None where they are not rounded."""
    return scheme.options.activation_type if isinstance(scheme.options, ValueOptions) else None


class CodedFormat(Format):
    """A format, or a form that kernels read, whose options may be `ValueOptions`."""

    def is_exact(self, scheme: Scheme) -> bool:
        return value_type_of(scheme) is None

    def round_activations(self, x: Tensor, scheme: Scheme) -> Tensor:
        values = activation_type_of(scheme)
        return x if values is None else rounded_tokens(x, values)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        if activation_type_of(scheme) is None:
            return self.multiply(x, scheme, shape, tensors, bias, plan)
        return self.multiply_rounded(x, scheme, shape, tensors, bias, plan)

    @abstractmethod
    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear`, of activations as they are; sums are multiplied by `tensors[X_SCALES]`, if any.

        Only a GPU's forms are given X_SCALES, with x in the 16-bit dtype of the scheme.
        """

    def multiply_rounded(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear`, of activations that are rounded to codes first."""
        values = value_options(scheme).activation_type
        assert values is not None
        if takes_16_bits(x, scheme.dtype):
            codes, scales = codes_in_16_bits(x, values)
            scaled = {**tensors, X_SCALES: scales}
            y = self.multiply(codes, scheme, shape, scaled, bias, plan)
            if not x.requires_grad:
                return y
            straight = self.multiply(x, scheme, shape, tensors, bias, plan)
            return y.detach() + (straight - straight.detach())  # plus zero, with the gradient
        return multiply_rounded(
            x,
            values,
            bias,
            lambda codes: self.multiply(codes, scheme, shape, tensors, None, plan),
        )

    def multiplies_codes(self, scheme: Scheme, device: torch.device) -> bool:
        """Whether a device has a kernel of this form for activations rounded to codes.

        All others are given codes as 16-bit numbers, or float32 ones on a CPU.
        """
        return False

    def tell_of_activations(self, scheme: Scheme, device: torch.device) -> None:
        """Logs once what becomes of activations that are rounded, where they have no kernel."""
        values = activation_type_of(scheme)
        if values and not self.multiplies_codes(scheme, device):
            _tell_of_activations(self.name, values.name, device.type)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        """Packs codes as they are, with their scales.

        Args:
            codes: [out_features, in_features], zeros included: numbers in a floating dtype that
                holds them exactly, int8, or the bits of fp8_e4m3 in uint8.
            scales: [out_features, groups], finite and not negative.
            scheme: With a value type other than native.

        Raises:
            FormatError: For codes that the format cannot hold or that are none of the type, or
                scales that the scheme cannot hold.
        """
        raise FormatError(f"{self.name} packs no codes. Remedy: pack the weight itself")

    def rounded(self, weight: Tensor, packed: PackedWeight) -> Tensor:
        if value_type_of(packed.scheme) is None:
            return weight
        options, columns = value_options(packed.scheme), packed.shape[1]
        assert options.value_type is not None
        scales = packed.tensors[SCALE].to(weight.device).float()
        scales = spread_scales(scales, columns, options.scale_group)
        return (options.value_type.round(weight.float() / scales) * scales).to(packed.dtype)

    def require_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Proves what `pack_codes` is given.

        Returns:
            Codes as float16 numbers, which hold every code, and scales in the dtype that the scheme
            stores them in.

        Raises:
            FormatError: As `pack_codes` does.
        """
        options = value_options(scheme)
        values = options.value_type
        if values is None:
            raise FormatError(f"{scheme} has native values, which are no codes: use pack")
        if codes.dtype == torch.uint8:
            codes = codes.view(torch.float8_e4m3fn)
        numbers = codes.to(torch.float16)
        if not torch.equal(values.round(numbers.float()), numbers.float()):
            raise FormatError(
                f"codes of a [{', '.join(map(str, codes.shape))}] weight are no "
                f"{values.name} numbers"
            )
        wanted = (codes.shape[0], scale_count(codes.shape[1], options.scale_group))
        if tuple(scales.shape) != wanted:
            raise FormatError(f"{SCALE} must be {list(wanted)}, not {list(scales.shape)}")
        require_scales(scales, values, scheme.dtype)
        dtype = scale_dtype(scheme.dtype, options.scale_group)
        stored = scales.to(dtype)
        if not torch.equal(stored.to(scales.dtype), scales):
            raise FormatError(
                f"{SCALE} of {dtype_name(scales.dtype)} does not survive in "
                f"{dtype_name(dtype)}, in which a {scheme} weight keeps it. Remedy: load the model "
                f"in {dtype_name(scales.dtype)}"
            )
        return numbers, stored


def packs_codes(format: Format) -> TypeGuard[CodedFormat]:
    """Whether a format packs codes as another tool made them, of some type."""
    return isinstance(format, CodedFormat) and "values" in format.Options.model_fields


@functools.cache
def _tell_of_activations(form: str, activations: str, device: str) -> None:
    logger.info(
        "activations are rounded to %s per token, and multiplied in %s: %s has no W8A8 kernel on "
        "this %s device",
        *(activations, "32 bits" if device == "cpu" else "16 bits", form, device),
    )
