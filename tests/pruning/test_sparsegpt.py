# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from flashsparse_plugin.pruning import Statistics, keep_mask, nm_keep_mask
from flashsparse_plugin.pruning.rule import PruningRule
from flashsparse_plugin.pruning.sparsegpt import prune_sparsegpt_


def inputs(columns, tokens=200):
    """Correlated inputs, as those of a model are."""
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(columns, columns, generator=generator) / columns**0.5
    own = torch.randn(tokens, columns, generator=generator)
    return own + 2 * own @ mixed


def weight_of(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(2))


def reference(weight, x, rule):
    """Algorithm 1 with the inverse of the columns that are left computed anew at each column."""
    w, gram = weight.double().clone(), (x.T @ x).double()
    gram += 0.01 * gram.diagonal().mean() * torch.eye(len(gram))
    keep = torch.ones_like(w, dtype=torch.bool)
    for j in range(w.shape[1]):
        inverse = [torch.linalg.inv(gram[i:, i:])[0] for i in range(w.shape[1])]
        if rule.pattern is None and j == 0:
            scores = torch.stack([w[:, i] ** 2 / inverse[i][0] for i in range(w.shape[1])], 1)
            keep = keep_mask(scores.float(), rule.sparsity, rule.scope)
        if rule.pattern is not None and j % rule.pattern[1] == 0:
            here = range(j, min(j + rule.pattern[1], w.shape[1]))
            scores = torch.stack([w[:, i] ** 2 / inverse[i][0] for i in here], 1)
            keep[:, here.start : here.stop] = nm_keep_mask(
                scores.float(), *rule.pattern, rule.vector_length
            )
        error = w[:, j].masked_fill(keep[:, j], 0) / inverse[j][0]
        w[:, j:] -= error[:, None] * inverse[j]
    return w.masked_fill(~keep, 0), keep


RULES = [
    PruningRule(0.5, "layer"),
    PruningRule(0.6, "row"),
    PruningRule(pattern=(2, 4)),
    PruningRule(pattern=(3, 7), vector_length=4),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_the_plain_algorithm(rule):
    weight, x = weight_of(10, 18), inputs(18)
    expected, keep = reference(weight, x, rule)
    found = weight.clone()
    _, kept = prune_sparsegpt_(found, Statistics(gram=x.T @ x), rule)
    assert torch.equal(kept, keep)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", [*RULES, PruningRule(0.5, "layer")], ids=str)
def test_the_update_makes_up_for_zeros_across_blocks(rule):
    weight, x = weight_of(24, 300), inputs(300, 900)
    pruned = weight.clone()
    _, keep = prune_sparsegpt_(pruned, Statistics(gram=x.T @ x), rule)
    assert torch.equal(pruned != 0, keep)
    if rule.pattern is None:
        count = pruned.numel() if rule.scope == "layer" else pruned.shape[1]
        zeros = (~keep).sum() if rule.scope == "layer" else (~keep).sum(1)
        assert (zeros == round(rule.sparsity * count)).all()
    dense = x @ weight.T
    masked, updated = (x @ w.T - dense for w in (weight * keep, pruned))
    assert updated.square().sum() < 0.75 * masked.square().sum()


def test_dead_inputs_go_first_and_existing_zeros_stay():
    weight, x = weight_of(4, 8), inputs(8)
    x[:, 2] = 0
    weight[1, 5] = 0
    prune_sparsegpt_(weight, Statistics(gram=x.T @ x), PruningRule(0.25, "row"))
    assert weight[:, 2].eq(0).all() and weight[1, 5] == 0
    assert weight.eq(0).sum(1).eq(2).all()


def test_a_layer_without_tokens_and_everything_dropped():
    weight = weight_of(4, 8)
    before = weight.clone()
    prune_sparsegpt_(weight, Statistics(gram=torch.zeros(8, 8)), PruningRule(0.5, "layer"))
    assert torch.equal(weight != 0, keep_mask(before.abs(), 0.5))
    prune_sparsegpt_(weight, Statistics(gram=torch.eye(8)), PruningRule(1.0, "layer"))
    assert weight.eq(0).all()


def test_a_gram_matrix_without_inverse_is_refused_by_name():
    gram = torch.eye(8)
    gram[0, 1] = gram[1, 0] = 5.0
    with pytest.raises(ValueError, match=r"layers\.3\.up: the Gram matrix .* cannot be inverted"):
        prune_sparsegpt_(
            weight_of(4, 8), Statistics("layers.3.up", gram=gram), PruningRule(0.5, "row")
        )
