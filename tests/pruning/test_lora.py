# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from tiny_causal_lms import VOCAB, tiny_model
from transformers import AutoModelForCausalLM, GPT2Config

from flashsparse_plugin.pruning import LoRA, prunable_linears, prune, recover_
from flashsparse_plugin.pruning.lora import Training, _Linear

TOKENS = torch.randint(3, VOCAB, (6, 32), generator=torch.Generator().manual_seed(0))
METHOD = LoRA(rank=4, steps=12, rate=5e-3, batch=2)


def gpt2():
    """A model whose weights are stored transposed, and whose head is its embedding."""
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return AutoModelForCausalLM.from_config(GPT2Config(vocab_size=VOCAB, **shape)).eval()


def pair_of(family="llama", dtype=torch.float32):
    """A model pruned to 2:4, and the one that it comes from."""
    dense = gpt2() if family == "gpt2" else tiny_model(family)
    with torch.no_grad():  # predictions that depend on what is pruned
        for parameter in dense.parameters():
            parameter.mul_(3)
    dense = dense.to(dtype)
    pruned = copy.deepcopy(dense)
    prune(pruned, "magnitude", pattern=(2, 4), progress=False)
    return pruned, dense


def test_a_product_and_its_gradients_are_those_of_the_masked_sum():
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": (2, 3, 8), "weight": (5, 8), "up": (5, 2), "down": (2, 8), "out": (2, 3, 5)}
    x, weight, up, down, out = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes.values()
    )
    weight[torch.rand(5, 8, generator=generator) < 0.5] = 0
    found, expected = [], []
    for forward, results in (
        (lambda x, u, d: _Linear.apply(x, weight, u, d, torch.float64), found),
        (lambda x, u, d: x @ (weight + (u @ d) * (weight != 0)).T, expected),
    ):
        given = [each.clone().requires_grad_() for each in (x, up, down)]
        product = forward(*given)
        (product * out).sum().backward()
        results += [product, *(each.grad for each in given)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", torch.float32), ("llama", torch.bfloat16), ("gpt2", torch.float32)],
)
def test_the_model_comes_closer_and_zeros_stay(family, dtype):
    pruned, dense = pair_of(family, dtype)
    before, own = copy.deepcopy(pruned.state_dict()), copy.deepcopy(dense.state_dict())
    pruned.train()
    seen = []
    (fit,) = recover_(pruned, dense, TOKENS, METHOD, on_progress=lambda *done: seen.append(done))
    assert fit.name == "" and fit.after < 0.9 * fit.before
    assert seen == [(step, 12) for step in range(1, 13)]
    changed = {f"{name}.weight" for name in prunable_linears(pruned)}
    for name, tensor in pruned.state_dict().items():
        assert torch.equal(tensor, before[name]) != (name in changed), name
        if name in changed:
            assert tensor.dtype == dtype and tensor[before[name] == 0].eq(0).all()
    assert all(torch.equal(tensor, own[name]) for name, tensor in dense.state_dict().items())
    assert pruned.training and not dense.training
    assert all(parameter.requires_grad for parameter in pruned.parameters())
    assert all(parameter.grad is None for parameter in pruned.parameters())
    # What was measured is what is stored.
    again = Training(pruned, dense, [*prunable_linears(pruned)], TOKENS, METHOD)
    assert again.divergence() == pytest.approx(fit.after, rel=1e-5)


def test_weights_are_trained_as_they_are_stored():
    """In float32, for a checkpoint in bfloat16: no rounding is left for its file."""
    pruned, dense = pair_of()
    pruned.bfloat16().float()
    names = [*prunable_linears(pruned)]
    training = Training(pruned, dense, names, TOKENS, METHOD, torch.bfloat16)
    for _ in training.run():
        pass
    before, after = training.merge_()
    again = Training(pruned, dense, names, TOKENS, METHOD)
    assert after < before and again.divergence() == pytest.approx(after, rel=1e-5)
    for name, layer in prunable_linears(pruned).items():
        weight = layer.weight.detach()
        assert torch.equal(weight, weight.bfloat16().float()), name


def test_a_training_goes_on_from_its_state():
    pruned, dense = pair_of()
    names = [*prunable_linears(pruned)]
    whole = Training(pruned, dense, names, TOKENS, METHOD)
    state = next({n: t.clone() for n, t in whole.state().items()} for s in whole.run() if s == 5)
    for _ in whole.run():
        pass
    resumed = Training(pruned, dense, names, TOKENS, METHOD)
    resumed.load(state)
    assert [*resumed.run()] == list(range(6, 13))
    assert resumed.before == whole.before
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("before"), "other tensors"),
        (lambda s: s.update(step=torch.tensor(99)), "99 steps of 12"),
        (lambda s: s.update(step=torch.tensor([5])), "step has another shape"),
        (lambda s: s["before"].fill_(torch.nan), "before is not finite"),
        (lambda s: s["model.layers.0.mlp.up_proj.up"].fill_(torch.inf), r"up_proj\.up is not fin"),
    ],
)
def test_what_is_not_a_state_changes_nothing(change, message):
    pruned, dense = pair_of()
    training = Training(pruned, dense, [*prunable_linears(pruned)], TOKENS, METHOD)
    next(training.run())
    state = {name: tensor.clone() for name, tensor in training.state().items()}
    expected = copy.deepcopy(state)
    change(state)
    with pytest.raises(ValueError, match=message):
        training.load(state)
    assert all(torch.equal(t, expected[name]) for name, t in training.state().items())


def test_a_model_that_becomes_worse_stays_as_it_is():
    pruned, dense = pair_of()
    before = copy.deepcopy(pruned.state_dict())
    (fit,) = recover_(pruned, dense, TOKENS, LoRA(rank=4, steps=3, rate=0.9))
    assert fit.after == fit.before
    assert all(torch.equal(tensor, before[name]) for name, tensor in pruned.state_dict().items())


@pytest.mark.parametrize("given", [{"rank": 0}, {"steps": 0}, {"batch": 0}, {"rate": 0.0}])
def test_settings_that_train_nothing(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        LoRA(**given)


def test_what_does_not_fit_the_models():
    pruned, dense = pair_of()
    with pytest.raises(
        ValueError, match=r"rank 32 is not low-rank for any layer: .* is .*q_proj, .* below 32"
    ):
        recover_(pruned, dense, TOKENS, LoRA(rank=32))
    with pytest.raises(ValueError, match="tokenize with the model's own tokenizer"):
        recover_(pruned, dense, TOKENS + VOCAB, METHOD)
    with pytest.raises(ValueError, match="no layer of the pruned model has zeros"):
        recover_(dense, dense, TOKENS, METHOD)
