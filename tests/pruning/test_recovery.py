# SPDX-License-Identifier: Apache-2.0
import copy
import weakref

import pytest
import torch
from tiny_causal_lms import VOCAB, tiny_model

from flashsparse_plugin.pruning import LeastSquares, prunable_linears, prune, recover_
from flashsparse_plugin.pruning.least_squares import fit_kept

TOKENS = torch.randint(3, VOCAB, (8, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def pair():
    """A model pruned to 2:4, and the one that it comes from."""
    dense = tiny_model("llama")
    with torch.no_grad():  # inputs that correlate, which random weights of size 0.02 do not make
        for parameter in dense.parameters():
            parameter.mul_(3)
    pruned = copy.deepcopy(dense)
    prune(pruned, "magnitude", pattern=(2, 4), progress=False)
    return pruned, dense


def masks(model):
    return {name: linear.weight != 0 for name, linear in prunable_linears(model).items()}


def test_enough_steps_solve_the_least_squares_of_every_row():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    y = torch.randn(200, 5, generator=generator)
    weight = torch.randn(5, 12, generator=generator)
    weight[torch.rand(5, 12, generator=generator) < 0.5] = 0
    weight[4] = 0
    gram = x.T @ x
    found = fit_kept(weight, gram, y.T @ x, ridge=0.1, steps=60)
    damping = 0.1 * gram.diagonal().mean()
    for row, (start, target) in enumerate(zip(weight, y.T, strict=True)):
        kept = start.nonzero().flatten()
        a = gram[kept][:, kept] + damping * torch.eye(len(kept))
        b = (x.T @ target)[kept] + damping * start[kept]
        expected = torch.zeros(12)
        expected[kept] = torch.linalg.solve(a, b)
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-4)


def test_no_input_leaves_the_weight_as_it_is():
    weight = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    assert torch.equal(fit_kept(weight, torch.zeros(2, 2), torch.zeros(2, 2)), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_come_closer_and_zeros_stay(pair, dtype):
    pruned, dense = (model.to(dtype) for model in pair)
    before = masks(pruned)

    def error():
        with torch.no_grad():
            logits = [model(input_ids=TOKENS).logits.float() for model in (pruned, dense)]
        return float((logits[0] - logits[1]).square().mean())

    worse, seen = error(), []
    fits = recover_(
        pruned, dense, TOKENS, batch_size=3, on_progress=lambda *done: seen.append(done)
    )
    assert error() < 0.8 * worse
    after = masks(pruned)
    assert all(not (after[name] & ~mask).any() for name, mask in before.items())
    assert [fit.name for fit in fits] == list(before)
    assert all(fit.after <= fit.before for fit in fits)
    assert sum(fit.after for fit in fits) < 0.8 * sum(fit.before for fit in fits)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_result_is_the_same_from_run_to_run(pair):
    pruned, dense = pair
    again = copy.deepcopy(pruned)
    for model in (pruned, again):
        recover_(model, dense, TOKENS)
    pairs = zip(pruned.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_layers_without_zeros_stay_as_they_are_and_models_too(pair):
    pruned, dense = pair
    own = copy.deepcopy(dense.state_dict())
    up = pruned.model.layers[1].mlp.up_proj
    up.weight.data = dense.model.layers[1].mlp.up_proj.weight.data.clone()
    pruned.train()
    fits = recover_(pruned, dense, TOKENS)
    assert "model.layers.1.mlp.up_proj" not in {fit.name for fit in fits}
    assert torch.equal(up.weight, dense.model.layers[1].mlp.up_proj.weight)
    assert pruned.training and not dense.training
    assert all(torch.equal(tensor, own[name]) for name, tensor in dense.state_dict().items())
    assert not any(m._forward_hooks for model in pair for m in model.modules())


def test_the_statistics_of_one_layer_are_held_at_a_time(pair, monkeypatch):
    from flashsparse_plugin.pruning import gathering

    alive, most = weakref.WeakSet(), 0

    class Counted(gathering.Inputs):
        def __init__(self, *arguments):
            nonlocal most
            super().__init__(*arguments)
            alive.add(self)
            most = max(most, len(alive))

    monkeypatch.setattr(gathering, "Inputs", Counted)
    recover_(*pair, TOKENS)
    assert most == 7


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("opt", r"is missing in the pruned model and"),
        ("same", "no layer of the pruned model has zeros"),
    ],
)
def test_what_does_not_belong_together(pair, other, message):
    pruned, dense = pair
    if other == "same":
        pruned = copy.deepcopy(dense)
    else:
        dense = tiny_model(other)
    before = copy.deepcopy(pruned.state_dict())
    with pytest.raises(ValueError, match=message):
        recover_(pruned, dense, TOKENS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in pruned.state_dict().items())


@pytest.mark.parametrize("given", [{"ridge": 0.0}, {"steps": 0}])
def test_settings_that_fit_nothing(given):
    with pytest.raises(ValueError, match="above 0"):
        LeastSquares(**given)
