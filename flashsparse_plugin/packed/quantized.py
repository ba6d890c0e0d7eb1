# SPDX-License-Identifier: Apache-2.0
"""What a format does with values that are stored as codes, and with activations rounded to some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..plan import Plan
from ..rules import FormatError
from .options import Quantized


class _Scheme(Protocol):
    """What is asked of a scheme."""

    @property
    def quantization(self) -> Quantized | None: ...


class _Weight(Protocol):
    """What is asked of a packed weight."""

    @property
    def scheme(self) -> Any: ...


S = TypeVar("S", bound=_Scheme)
P = TypeVar("P", bound=_Weight)


class QuantizedValues(Generic[S, P]):
    """The part of a format that knows quantized values; by default it has none."""

    name: ClassVar[str]

    def is_exact(self, scheme: S) -> bool:
        """Whether packing keeps every value bit for bit; else it rounds finite values to codes."""
        return scheme.quantization is None

    def rounded(self, weight: Tensor, packed: P) -> Tensor:
        """What a packed weight holds in the place of a dense one that it was made of, or should.

        That is the weight itself, but for a scheme that is not exact: the nearest codes, by the
        scales that there are.

        Args:
            weight: [out_features, in_features] in the dtype of the scheme.
            packed: The packed weight.
        """
        found = packed.scheme.quantization
        return weight if found is None else found.rounded(weight, packed)

    def takes_codes(self, values: str, group: int | None) -> bool:
        """Whether the format holds codes of a type, with scales of rows or of groups of columns.

        Args:
            values: The type: "int8".
            group: Columns of a row that share a scale; None: all of them.
        """
        return False

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: S) -> P:
        """Packs codes as they are, with their scales.

        Args:
            codes: [out_features, in_features], zeros included: numbers in a floating dtype that
                holds them exactly, int8, or the bits of fp8_e4m3 in uint8.
            scales: [out_features, groups], finite.
            scheme: Of quantized values.

        Raises:
            FormatError: For codes that the format cannot hold or that are none of the type, or
                scales that the scheme cannot hold.
        """
        raise FormatError(f"{self.name} packs no codes. Remedy: pack the weight itself")

    def round_activations(self, x: Tensor, scheme: S) -> Tensor:
        """The activations that a product multiplies: x, but for a scheme that rounds it first.

        For self-tests and tests; `linear` takes x as it is.

        Args:
            x: [..., in_features].
            scheme: The scheme of the weight.
        """
        return x if scheme.quantization is None else scheme.quantization.round_activations(x)

    def multiplies_codes(self, scheme: S, device: torch.device) -> bool:
        """Whether a device has a W8A8 kernel of this form, for activations rounded to codes.

        Other kernels are given codes as 16-bit numbers, or float32 ones on a CPU.
        """
        return False

    def multiply_codes(
        self,
        x: Tensor,
        scheme: S,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear` by a W8A8 kernel, which rounds x, of the dtype of the scheme, by itself."""
        raise NotImplementedError(f"{self.name} has no W8A8 kernel")
