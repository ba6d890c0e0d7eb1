# SPDX-License-Identifier: Apache-2.0
"""Hidden channels in another order: the same model, of which a pattern keeps more."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_causal_lms import VOCAB, tiny_model

from flashsparse_plugin.pruning import nm_keep_mask, prunable_linears, prune
from flashsparse_plugin.pruning.permutation import feed_forwards, permute_, spread
from flashsparse_plugin.pruning.rule import PruningRule

TOKENS = torch.randint(3, VOCAB, (4, 24), generator=torch.Generator().manual_seed(0))
RULE = PruningRule(pattern=(2, 4))


def kept(scores, n, m):
    return float((scores * nm_keep_mask(scores, n, m)).sum(dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 8), st.data())
def test_an_order_is_one_and_never_worse_than_dealing(rows, columns, m, data):
    n = data.draw(st.integers(1, m))
    scores = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows * columns))
    dealt, order = spread(scores, n, m, rounds=0), spread(scores, n, m, rounds=20)
    assert order.sort().values.equal(torch.arange(columns))
    assert kept(scores[:, order], n, m) >= kept(scores[:, dealt], n, m) * (1 - 1e-6)
    behind = columns // m * m
    assert order[behind:].equal(torch.arange(behind, columns))


def test_important_columns_are_spread():
    scores = torch.rand(16, 64, generator=torch.Generator().manual_seed(0))
    scores[:, :8] += 10  # two whole windows, of which 2:4 would drop half
    order = spread(scores, 2, 4)
    most = float((torch.sort(scores, 1, True).values[:, :32]).sum())
    assert kept(scores, 2, 4) < 0.7 * most and kept(scores[:, order], 2, 4) > 0.95 * most


@pytest.mark.parametrize("name", ["llama", "opt", "gemma3", "glm4"])
def test_the_model_computes_the_same(name, caplog):
    model = tiny_model(name)
    linears = prunable_linears(model)
    expected = model(input_ids=TOKENS).logits
    before = {n: linear.weight.detach().clone() for n, linear in linears.items()}
    with caplog.at_level(logging.WARNING):
        try:
            permuted = permute_(model, linears, RULE, [TOKENS])
        except ValueError as error:
            assert name == "glm4" and "no feed-forward network" in str(error)  # gate_up is one
            return
    assert len(permuted) == 3 and not caplog.records
    torch.testing.assert_close(model(input_ids=TOKENS).logits, expected, rtol=1e-3, atol=1e-4)
    for each in permuted:
        assert not linears[each].weight.equal(before[each])


def test_channels_with_an_order_stay_where_they_are(caplog):
    """What a layer reads may be more than its neighbours' outputs, channel by channel."""
    model = tiny_model("qwen3")
    for layer in model.model.layers:
        wide = torch.nn.Linear(32, 48, bias=False)
        bound = torch.nn.Linear(48, 32, bias=False)

        class Bound(torch.nn.Module):
            def __init__(self, mlp, wide=wide, bound=bound):
                super().__init__()
                self.mlp, self.first, self.second = mlp, wide, bound

            def forward(self, x):
                return self.mlp(x) + self.second(self.first(x).cumsum(-1))

        layer.mlp = Bound(layer.mlp)
    expected = model(input_ids=TOKENS).logits
    before = model.model.layers[1].mlp.second.weight.detach().clone()
    with caplog.at_level(logging.WARNING):
        permuted = permute_(model, prunable_linears(model), RULE, [TOKENS])
    assert [each.rpartition(".")[2] for each in permuted] == ["down_proj"] * 3
    assert "the channels that second reads" in caplog.text
    assert model.model.layers[1].mlp.second.weight.equal(before)
    torch.testing.assert_close(model(input_ids=TOKENS).logits, expected, rtol=1e-3, atol=1e-4)


def test_more_is_kept_of_what_is_reordered():
    found = {}
    for permute in (False, True):
        report = prune(
            tiny_model("llama"), "wanda", pattern=(2, 4), calibration=TOKENS, permute=permute,
            progress=False,
        )  # fmt: skip
        found[permute] = {layer.name: layer.retained.share for layer in report.layers}
    readers = [each.name for each in feed_forwards(prunable_linears(tiny_model("llama")))]
    assert len(readers) == 3
    for name in readers:
        assert found[True][name] > found[False][name]


def test_without_a_pattern_there_is_nothing_to_spread():
    with pytest.raises(ValueError, match="give pattern="):
        prune(tiny_model("llama"), "magnitude", permute=True)
