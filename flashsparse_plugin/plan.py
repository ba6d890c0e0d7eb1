# SPDX-License-Identifier: Apache-2.0
"""A plan: which implementation multiplies how many tokens (FlashDecoding++, section 5).

Ground floor: formats and layers follow plans, `dataflow` makes them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Source = Literal["table", "shipped", "model", "device"]
"""What decides on a plan; see `Plan.source`."""

NO_LIMIT = (1 << 31) - 1
"""Tokens: more than any tensor of activations has rows."""


SPARSE, FEW, MANY, LIBRARY = "sparse", "few", "many", "library"
"""Implementations of packed weights: the format's only kernel, or whichever of several it would
take itself; its kernel for few tokens; the one for many; and unpacking for torch's own linear."""


class Implementation(NamedTuple):
    """One way to multiply a weight.

    Attributes:
        most_tokens: The most tokens that it takes; None: any number.
        what: What it is, for people.
        capability: The one compute capability that has it; None: all.
    """

    most_tokens: int | None
    what: str
    capability: tuple[int, int] | None = None


class Range(NamedTuple):
    """An implementation and the most tokens that it is used for; None: all that are left."""

    max_tokens: int | None
    implementation: str

    @property
    def end(self) -> int:
        """`max_tokens` as a number: NO_LIMIT where there is no limit."""
        return NO_LIMIT if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True)
class Plan:
    """The implementation for any number of tokens, decided once, when a layer is loaded.

    Attributes:
        ranges: Rising in tokens; the last has no end.
        source: What decided: "table" (the user's), "shipped" (the package's table), "model" (of
            bytes and latencies), or "device" (there is nothing to choose).
        reason: One sentence for people.
        sparse_tokens: The most tokens that a packed weight's own kernels are used for.
        few_tokens: The most that the kernel for few is used for, where the format has one for many,
            too; None: the format's own rule chooses between them.
    """

    ranges: tuple[Range, ...]
    source: Source = "device"
    reason: str = ""
    # What ops are told in each call, looked up once.
    sparse_tokens: int = field(init=False, repr=False, compare=False)
    few_tokens: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        either, few, many = (self.most(name) for name in (SPARSE, FEW, MANY))
        object.__setattr__(self, "sparse_tokens", max(either, few, many))
        object.__setattr__(self, "few_tokens", None if either else few)

    @classmethod
    def only(cls, implementation: str) -> Plan:
        """The plan that takes one implementation for any number of tokens."""
        return cls((Range(None, implementation),))

    @classmethod
    def of(
        cls, ranges: Iterable[tuple[int | None, str]], source: Source = "device", reason: str = ""
    ) -> Plan:
        """The plan of some (max_tokens, implementation)."""
        return cls(tuple(Range(*each) for each in ranges), source, reason)

    def implementation(self, tokens: int) -> str:
        """The name of the implementation for a number of tokens."""
        ends = [each.end for each in self.ranges[:-1]]
        return self.ranges[bisect.bisect_left(ends, tokens)].implementation

    def most(self, implementation: str) -> int:
        """The most tokens that an implementation is used for.

        0 where it is not used, NO_LIMIT where it is used for all that the others leave.
        """
        for each in self.ranges:
            if each.implementation == implementation:
                return each.end
        return 0

    def __str__(self) -> str:
        if len(self.ranges) == 1:
            text = f"{self.ranges[0].implementation} for any number of tokens"
        else:
            parts = [f"{name} for up to {most} tokens" for most, name in self.ranges[:-1]]
            text = ", ".join([*parts, f"else {self.ranges[-1].implementation}"])
        return f"{text} ({self.reason})" if self.reason else text


def limits_of(plan: Plan | None, count: int) -> tuple[int | None, ...]:
    """What an op is told of a plan: the first of sparse_tokens and few_tokens; None: no plan."""
    if plan is None:
        return (None, None)[:count]
    return (plan.sparse_tokens, plan.few_tokens)[:count]
