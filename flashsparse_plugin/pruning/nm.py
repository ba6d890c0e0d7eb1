# SPDX-License-Identifier: Apache-2.0
"""Vector-wise N:M sparsity: of every M columns N are kept, the same ones for L rows.

This is the pattern of NM-SpMM (Ma et al., 2025, section II), whose pruning unit is a vector of L
elements along the output dimension, and whose window is M such vectors along the input dimension.
"""

from __future__ import annotations

import math

import torch

from .masks import check_scores, lowest_of_row


def check_pattern(n: int, m: int, vector_length: int = 1) -> None:
    """Raise ValueError unless 1 <= n <= m <= 256 and vector_length >= 1."""
    if not 1 <= n <= m <= 256:
        raise ValueError(f"pattern {n}:{m} is invalid: an N:M pattern has 1 <= N <= M <= 256")
    if vector_length < 1:
        raise ValueError(f"vector_length is {vector_length}, but must be 1 or more")


def nm_keep_mask(scores: torch.Tensor, n: int, m: int, vector_length: int = 1) -> torch.Tensor:
    """Choose what to keep: the n best of every m consecutive columns.

    The score of a vector of several rows is the sum of their scores, so that no other choice keeps
    a larger sum. Windows at the edges are shorter: the last window keeps min(n, its columns), and
    the last group of rows shares its choice among the rows that it has.

    Args:
        scores: float32 [out_features, in_features], not negative.
        n: Columns kept of each window.
        m: Columns of a window, at most 256.
        vector_length: Consecutive rows that share the choice (the paper's L).

    Returns:
        bool [out_features, in_features], True where the element is kept.

    Raises:
        ValueError: For scores that are NaN or negative, or an impossible pattern.
    """
    check_scores(scores)
    check_pattern(n, m, vector_length)
    rows, columns = scores.shape
    groups, windows = math.ceil(rows / vector_length), math.ceil(columns / m)
    vectors = scores
    if vector_length > 1:
        padded = scores.new_zeros(groups * vector_length, columns)
        padded[:rows] = scores
        padded = padded.view(groups, vector_length, columns)
        vectors = padded.sum(1, dtype=torch.float64)  # of large float32 it may be infinite
    # Columns beyond the edge are worse than any score, so that they are dropped first.
    padded = vectors.new_full((groups, windows * m), -math.inf)
    padded[:, :columns] = vectors
    dropped = lowest_of_row(padded.view(-1, m), m - n).view(groups, -1)[:, :columns]
    return ~dropped.repeat_interleave(vector_length, dim=0)[:rows]
