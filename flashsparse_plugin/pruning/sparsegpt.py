# SPDX-License-Identifier: Apache-2.0
"""SparseGPT: choose zeros and make up for them with what is kept (Frantar and Alistarh, 2023).

Of the layer's inputs only their Gram matrix H = X X^T is needed (arXiv 2301.00774, algorithm 1).
Columns are pruned from left to right. The score of an element is w^2 / [H^-1]_jj of the columns not
yet passed, the error that its removal causes after the best update of the others; that update goes
to the columns to the right. The factors [H^-1] of every step are rows of one Cholesky factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .blocks import dense_mask
from .masks import apply_mask_, keep_mask, zero_count
from .nm import nm_keep_mask
from .rule import PruningRule
from .statistics import Statistics

_BLOCK = 128  # columns whose zeros are chosen together: B of the paper
_LEAST = 1e-37  # a score: above 0, and not denormal
_DAMPING = 0.01  # of the mean of H's diagonal, added to it: the paper's


def sparsegpt_scores(weight: Tensor, statistics: Statistics) -> Tensor:
    """Return w^2 / d_j^2, d the diagonal of the inverse's factor, before any update; float32."""
    return (weight.float() / inverse_factor(statistics).diagonal()).square()


@torch.no_grad()
def prune_sparsegpt_(
    weight: Tensor, statistics: Statistics, rule: PruningRule
) -> tuple[Tensor, Tensor]:
    """Prune one weight in place and update what is kept.

    Zeros that are there already stay. Without a pattern the zeros are chosen among the elements of
    a block of 128 columns: of all its rows ("layer"), or of each row ("row").

    Args:
        weight: [out_features, in_features], finite.
        statistics: With `gram`.
        rule: How much to prune.

    Returns:
        The scores by which elements were chosen, float32 (0 for zeros that were there), and what
        was kept, bool.
    """
    factor, dead = inverse_factor(statistics), _dead(statistics)
    zero = weight == 0
    work = weight.float().contiguous()
    scores = torch.empty_like(work)
    keep = torch.empty_like(zero)
    diagonal = factor.diagonal()
    dense = _dense(work, diagonal, zero, rule)
    window = rule.pattern[1] if rule.pattern else None
    block = _BLOCK if window is None else window * math.ceil(_BLOCK / window)
    for start in range(0, work.shape[1], block):
        end = min(start + block, work.shape[1])
        part, errors = work[:, start:end], torch.empty_like(work[:, start:end])
        for column in range(start, end):
            if column == start or (window and (column - start) % window == 0):
                chosen = slice(column, end if window is None else min(column + window, end))
                found = (work[:, chosen] / diagonal[chosen]).square()
                # What an update made 0 ranks above the zeros from before, as dead inputs do.
                found = found.clamp(_LEAST, 1 / _LEAST).masked_fill_(dead[chosen], _LEAST)
                found.masked_fill_(zero[:, chosen], 0)
                scores[:, chosen] = found
                kept = _choose(found, rule, chosen, len(work))
                if dense is not None:
                    kept |= dense[:, chosen]
                keep[:, chosen] = kept & ~zero[:, chosen]
            values = work[:, column].clone()
            apply_mask_(work[:, column], keep[:, column])
            error = (values - work[:, column]) / diagonal[column]
            part[:, column - start + 1 :].addr_(error, factor[column, column + 1 : end], alpha=-1)
            errors[:, column - start] = error
        work[:, end:].addmm_(errors, factor[start:end, end:], alpha=-1)
    weight.copy_(apply_mask_(work, keep))
    return scores, keep


def _dense(weight: Tensor, diagonal: Tensor, zero: Tensor, rule: PruningRule) -> Tensor | None:
    """Which elements are in blocks that stay dense, by scores before any update; None: none is."""
    if not rule.dense:
        return None
    scores = (weight / diagonal).square().masked_fill(zero, 0)
    return dense_mask(scores.masked_fill(nm_keep_mask(scores, 2, 4), 0), rule.dense)


def _choose(scores: Tensor, rule: PruningRule, columns: slice, rows: int) -> Tensor:
    """What to keep of some columns, so that the whole matrix gets the zeros of the rule."""
    if rule.pattern is not None:
        return nm_keep_mask(scores, *rule.pattern, rule.vector_length)  # blocks: see _dense
    assert rule.sparsity is not None and rule.scope is not None
    each = rows if rule.scope == "layer" else 1  # elements of a column that are chosen together
    before, after = (zero_count(each * x, rule.sparsity) for x in (columns.start, columns.stop))
    share = (after - before) / (each * (columns.stop - columns.start))
    return keep_mask(scores, share, rule.scope)


def _dead(statistics: Statistics) -> Tensor:
    """Which inputs were 0 on every token, bool [in_features]; none where all were."""
    assert statistics.gram is not None
    dead = statistics.gram.diagonal() == 0
    return dead & ~dead.all()


def inverse_factor(statistics: Statistics) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped Gram matrix, float32.

    Raises:
        ValueError: Naming the layer, if the matrix has no such factor.
    """
    assert statistics.gram is not None
    gram = statistics.gram.double()
    diagonal = gram.diagonal()
    damping = _DAMPING * float(diagonal.mean()) or 1.0  # no token: any multiple of the identity
    diagonal += damping
    try:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        return torch.linalg.cholesky(inverse, upper=True).float()
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"{statistics.name}: the Gram matrix of its inputs cannot be inverted ({error}): give "
            "more calibration text, or use another method"
        ) from error
