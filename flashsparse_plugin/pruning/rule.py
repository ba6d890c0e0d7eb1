# SPDX-License-Identifier: Apache-2.0
"""How much to prune and among which elements to choose, for every score."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .blocks import dense_mask
from .layers import Retained
from .masks import keep_mask, zero_count
from .nm import check_pattern, nm_keep_mask

DEFAULT_SPARSITY = 0.5
SCOPES = ("layer", "row", "global")


@dataclass(frozen=True)
class PruningRule:
    """Either a sparsity within a scope, or an N:M pattern, which implies its sparsity.

    Attributes:
        sparsity: The share of zeros, 0..1; None for 0.5, or for what `pattern` implies.
        scope: The set among which the lowest scores are chosen: "layer" (a weight), "row" (an
            output feature) or "global" (the model). Must be None if a pattern is given.
        pattern: (n, m) keeps n of every m consecutive input features.
        vector_length: Consecutive output features that share the choice of a pattern.
        dense: With the pattern 2:4, the share of elements in blocks that stay dense.
    """

    sparsity: float | None = None
    scope: str | None = None
    pattern: tuple[int, int] | None = None
    vector_length: int = 1
    dense: float = 0.0

    def __post_init__(self) -> None:
        if self.dense:
            if not 0 <= self.dense <= 1:
                raise ValueError(f"dense={self.dense:g} is not a share of blocks from 0 to 1")
            if (self.pattern, self.vector_length) != ((2, 4), 1):
                raise ValueError(
                    "dense blocks stand beside 2:4 ones alone: give pattern=(2, 4), of single rows"
                )
        if self.pattern is None:
            if self.scope not in SCOPES:
                raise ValueError(
                    f"scope {self.scope!r} is invalid: choose one of {', '.join(map(repr, SCOPES))}"
                )
            if self.vector_length != 1:
                raise ValueError("vector_length belongs to an N:M pattern: give pattern=(n, m) too")
            sparsity = DEFAULT_SPARSITY if self.sparsity is None else self.sparsity
            zero_count(1, sparsity)
            object.__setattr__(self, "sparsity", sparsity)
            return
        n, m = self.pattern
        check_pattern(n, m, self.vector_length)
        if self.scope is not None:
            raise ValueError(f"a pattern ({n}:{m}) chooses within its windows: leave scope None")
        implied = (1 - n / m) * (1 - self.dense)
        if self.sparsity is not None and abs(self.sparsity - implied) > 1e-6:
            raise ValueError(
                f"pattern {n}:{m} has a sparsity of {implied:g}, not {self.sparsity:g}: "
                "give one of the two"
            )
        object.__setattr__(self, "sparsity", implied)

    def keep_mask(self, scores: torch.Tensor, power: int = 1) -> torch.Tensor:
        """Return what to keep of one weight, bool, for scores float32 [out_features, in_features].

        Args:
            scores: Not negative; the lowest are dropped.
            power: To which scores are what is lost with an element, so that they add up.

        Raises:
            ValueError: For the scope "global", which a single weight cannot decide.
        """
        if self.pattern is not None:
            keep = nm_keep_mask(scores, *self.pattern, self.vector_length)
            if self.dense:
                keep |= dense_mask((scores.double() ** power).masked_fill(keep, 0), self.dense)
            return keep
        assert self.sparsity is not None and self.scope is not None  # __post_init__ saw to it
        return keep_mask(scores, self.sparsity, self.scope)

    def retained(self, scores: torch.Tensor, keep: torch.Tensor, free_scope: str) -> Retained:
        """Return how much of the scores a mask has left.

        Args:
            scores: float32 [out_features, in_features].
            keep: bool, of their shape.
            free_scope: The scope, "layer" or "row", of the unstructured choice that a pattern is
                compared with.
        """
        share = share_kept(scores, keep)
        if self.pattern is None:
            return Retained(share)
        zeros = 1 - int(keep.sum()) / max(1, keep.numel())
        return Retained(share, share_kept(scores, keep_mask(scores, zeros, free_scope)))


def share_kept(scores: torch.Tensor, keep: torch.Tensor) -> float:
    """Return the share of the sum of all scores that the kept ones have; 1 where all are zero."""
    finite = scores.clamp(max=torch.finfo(scores.dtype).max)
    kept, total = (float(each.sum(dtype=torch.float64)) for each in (finite * keep, finite))
    return kept / total if total else 1.0
