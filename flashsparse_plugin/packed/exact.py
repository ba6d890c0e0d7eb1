# SPDX-License-Identifier: Apache-2.0
"""What a format says of weights that it keeps bit for bit, listing some elements apart."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from torch import Tensor

S = TypeVar("S")

MOST_EXCEPTIONS = 0.002
"""Share of a layer's elements above which it stays dense, unless it is packed by itself."""


class Exceptions(Generic[S]):
    """The part of a format that knows elements which its code has no place for; by default none."""

    keeps_zeros: ClassVar[bool] = False
    """Whether zeros are stored as all elements are, so that size and speed do not go by them."""
    rounds: ClassVar[bool] = True
    """Whether a weight of another dtype may be rounded to be packed; else it has to fit."""
    bucket: ClassVar[float] = 0.01
    """Share of the elements to which engines pad streams, so that layers share compiled graphs.
    Densities are mostly whole percents, give or take: a bucket ends between two of them."""

    def exceptions(self, scheme: S, shape: tuple[int, int], nbytes: int) -> int | None:
        """How many elements of a packed weight are listed apart; None: the format lists none.

        Args:
            scheme: How the weight is packed.
            shape: (out_features, in_features).
            nbytes: Bytes of the packed weight.
        """
        return None

    def exceptions_in(self, weight: Tensor) -> int | None:
        """`exceptions` of a weight that is not packed.

        Args:
            weight: [out_features, in_features], of a dtype of the format, on any device.
        """
        return None


def reason_of_exceptions(count: int | None, elements: int) -> str | None:
    """Why a layer had better stay dense, for people; None where it need not.

    Args:
        count: Its exceptions; None: its format lists none.
        elements: Of the weight.
    """
    if count is None or count <= MOST_EXCEPTIONS * elements:
        return None
    return (
        f"{count / elements:.2%} of its elements are exceptions, whose exponents are out of the "
        f"window of their row: above {MOST_EXCEPTIONS:.1%} packing does not pay"
    )
