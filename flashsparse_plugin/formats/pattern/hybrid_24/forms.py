# SPDX-License-Identifier: Apache-2.0
"""What hybrid_24 and its forms have in common: each is made from the tensors on disk, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme


@runtime_checkable
class HybridForm(Protocol):
    """hybrid_24, or a form of it for one kind of device."""

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the tensors of hybrid_24 by name, valid ones, where they are."""
        ...

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        """The inverse of `arrange`."""
        ...


def by_streams(packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight | None:
    """The same weight in another form on a device, values and kinds of units as they are.

    None where the target is no form of hybrid_24, or holds other values or another dtype.
    """
    own, other = packed.scheme, target.format
    if not (isinstance(packed.format, HybridForm) and isinstance(other, HybridForm)):
        return None
    if (own.options, own.dtype) != (target.options, target.dtype):
        return None
    stored = {name: each.to(device) for name, each in packed.format.stored(packed).items()}
    return other.arrange(stored, target, packed.shape)
