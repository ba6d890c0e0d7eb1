# SPDX-License-Identifier: Apache-2.0
"""From scores to masks: which elements are dropped to reach an exact number of zeros.

Scores are float32 and not negative; the lowest are dropped first. Equal scores are dropped in
row-major order, so that a mask depends on its scores alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def zero_count(count: int, sparsity: float) -> int:
    """Return how many of `count` elements are pruned: round(sparsity * count), halves to even.

    Raises:
        ValueError: If `sparsity` is not within 0..1.
    """
    if not 0.0 <= sparsity <= 1.0:  # false for NaN too
        raise ValueError(f"sparsity {sparsity} is not within 0 (keep all) and 1 (drop all)")
    return round(sparsity * count)


def check_scores(scores: torch.Tensor) -> None:
    """Raise ValueError unless the scores are a float32 matrix free of NaN and negative values."""
    if scores.dim() != 2 or scores.dtype != torch.float32:
        raise ValueError(
            "scores must be a float32 matrix [out_features, in_features], "
            f"not {scores.dtype} of shape {list(scores.shape)}"
        )
    valid = scores >= 0  # false for NaN
    if not bool(valid.all()):
        raise ValueError(f"{int((~valid).sum())} of {scores.numel()} scores are NaN or negative")


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def apply_mask_(weight: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Set the elements that are not kept to zero in place; all others keep their bits.

    The bits are multiplied, as integers: `masked_fill_` looks at one element after another on a
    CPU, and takes 18 times as long.

    Returns:
        The weight.
    """
    weight.view(_BITS[weight.element_size()]).mul_(keep)
    return weight


def kth_lowest(scores: Callable[[], Iterable[torch.Tensor]], k: int) -> tuple[float, int]:
    """Find the k-th lowest of many scores without holding them all.

    This is a radix selection: the bit patterns of float32 values that are not negative sort like
    integers, so one histogram of the upper 16 bits and one of the lower 16 find the value exactly.

    Args:
        scores: Called twice; each time yields the same score tensors, float32.
        k: From 1 to the number of scores.

    Returns:
        The k-th lowest score, and how many of the scores equal to it are among the k lowest.
    """

    def histogram(bin_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(1 << 16, dtype=torch.int64)
        for part in scores():
            # Some rows at a time: bincount works on int64.
            for chunk in part.abs().view(torch.int32).flatten().split(1 << 22):  # abs: no -0.0
                total += torch.bincount(bin_of(chunk), minlength=1 << 16).cpu()
        return total

    def find(counts: torch.Tensor, k: int) -> tuple[int, int]:
        below = counts.cumsum(0)
        bin_ = int(torch.searchsorted(below, k))
        return bin_, k - int(below[bin_] - counts[bin_])

    upper, k = find(histogram(lambda bits: bits >> 16), k)
    lower, k = find(histogram(lambda bits: bits[bits >> 16 == upper] & 0xFFFF), k)
    value = torch.tensor(upper << 16 | lower, dtype=torch.int32).view(torch.float32)
    return float(value), k


def below(scores: torch.Tensor, threshold: float, ties: int) -> torch.Tensor:
    """Return a bool mask of the scores below the threshold and the first `ties` equal to it."""
    lowest = scores < threshold
    equal = (scores == threshold).flatten().nonzero().flatten()[:ties]
    lowest.view(-1)[equal] = True
    return lowest


def lowest_of_row(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Return a bool mask of the k lowest scores of each row, exactly k of them.

    Args:
        scores: [rows, columns], no NaN; infinities of both signs are legal here.
        k: From 0 to columns.
    """
    if k == 0 or scores.numel() == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(k, dim=1, keepdim=True).values
    lowest = scores < threshold
    ties = k - lowest.sum(dim=1)
    # The first ties of each row; nonzero() lists them in row-major order.
    equal = scores == threshold
    row, column = equal.nonzero(as_tuple=True)
    before = equal.sum(dim=1).cumsum(0).roll(1)
    before[0] = 0
    taken = torch.arange(len(row), device=row.device) - before[row] < ties[row]
    lowest[row[taken], column[taken]] = True
    return lowest


def keep_mask(scores: torch.Tensor, sparsity: float, scope: str = "layer") -> torch.Tensor:
    """Choose what to keep: all but the lowest scores.

    Args:
        scores: float32 [out_features, in_features], not negative; infinity is legal.
        sparsity: The share to drop, within 0..1.
        scope: "layer" drops round(sparsity * elements) of the matrix, "row" drops
            round(sparsity * in_features) of every row.

    Returns:
        bool [out_features, in_features], True where the element is kept.

    Raises:
        ValueError: For scores that are NaN or negative, or another sparsity or scope.
    """
    check_scores(scores)
    if scope == "row":
        return ~lowest_of_row(scores, zero_count(scores.shape[1], sparsity))
    if scope != "layer":
        raise ValueError(f"scope {scope!r} is invalid for a single matrix: choose 'layer' or 'row'")
    drop = zero_count(scores.numel(), sparsity)
    if drop == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    return ~below(scores, *kth_lowest(lambda: [scores], drop))
