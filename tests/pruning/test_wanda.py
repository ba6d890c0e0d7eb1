# SPDX-License-Identifier: Apache-2.0
import copy
import logging
import weakref

import pytest
import torch
from tiny_causal_lms import CONFIGS, VOCAB, character_tokenizer, tiny_model

from flashsparse_plugin.pruning import (
    calibration_windows,
    keep_mask,
    prunable_linears,
    prune,
    wanda_scores,
)
from flashsparse_plugin.pruning.relay import decoder_layers


def tokens(samples=5, length=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (samples, length), generator=generator)


def quiet(model, calibration, **kwargs):
    return prune(model, "wanda", calibration=calibration, progress=False, **kwargs)


@torch.no_grad()
def reference(model, calibration, sparsity, ignore=("lm_head",)):
    """Wanda as simple as can be: the whole model runs anew for every stage, in one batch."""
    linears = prunable_linears(model, ignore)
    layers = decoder_layers(model)
    inside = [{id(module) for module in layer.modules()} for layer in layers]
    before = [n for n in linears if n.endswith("project_in")]
    stages = [before, *([n for n, lin in linears.items() if id(lin) in ids] for ids in inside)]
    stages.append([name for name in linears if not any(name in stage for stage in stages)])
    for stage in stages:
        inputs = {}
        hooks = [
            linears[name].register_forward_pre_hook(
                lambda _, args, name=name, to=inputs: to.update({name: args[0].flatten(0, -2)})
            )
            for name in stage
        ]
        model(input_ids=calibration, use_cache=False)
        for hook in hooks:
            hook.remove()
        for name in stage:
            weight = linears[name].weight
            score = weight.abs() * inputs[name].norm(dim=0)
            drop = score.argsort(dim=1, stable=True)[:, : round(sparsity * weight.shape[1])]
            weight.scatter_(1, drop, 0.0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch_size", [2, 8])
def test_equals_the_plain_method_on_every_architecture(name, batch_size):
    ignore = () if name == "llama" else ("lm_head",)
    expected, found = tiny_model(name), tiny_model(name)
    reference(expected, tokens(), 0.5, ignore)
    report = quiet(found, tokens(), batch_size=batch_size, ignore=ignore)
    assert report.sparsity == 0.5
    for layer in report.layers:
        a, b = (model.get_submodule(layer.name).weight for model in (expected, found))
        assert torch.equal(a, b), layer.name


def test_linears_around_the_decoder_layers_are_pruned_too():
    names = [layer.name for layer in quiet(tiny_model("opt-projected"), tokens()).layers]
    assert {"model.decoder.project_in", "model.decoder.project_out"} <= set(names)
    assert "lm_head" in [x.name for x in quiet(tiny_model("llama"), tokens(), ignore=()).layers]


def test_a_layer_sees_what_its_pruned_predecessors_give():
    model = tiny_model("llama")
    seen = []
    model.model.layers[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    quiet(model, tokens(4), batch_size=4)
    with torch.no_grad():
        hidden = model(input_ids=tokens(4), output_hidden_states=True).hidden_states[1]
        dense = tiny_model("llama")(input_ids=tokens(4), output_hidden_states=True)
    torch.testing.assert_close(seen[0], hidden)
    assert not torch.allclose(seen[0], dense.hidden_states[1], atol=1e-4)


def test_one_layer_of_activations_is_held_at_a_time():
    model, outputs, most = tiny_model("llama"), [], 0

    def watch(_, __, output):
        nonlocal most
        outputs.append(weakref.ref(output))
        alive = {id(reference()) for reference in outputs if reference() is not None}
        most = max(most, len(alive))

    for layer in model.model.layers:
        layer.register_forward_hook(watch)
    quiet(model, tokens(8), batch_size=1)
    # 8 batches stored, and the one that is just computed.
    assert len(model.model.layers) * 8 > 9
    assert 8 <= most <= 9


def test_a_layer_runs_twice_and_its_predecessors_cost_nothing():
    model, runs = tiny_model("llama"), [0, 0, 0]
    for i, layer in enumerate(model.model.layers):

        def count(_, __, i=i):
            runs[i] += 1

        layer.mlp.register_forward_pre_hook(count)
    quiet(model, tokens(4), batch_size=2)
    assert runs == [4, 4, 2]  # two batches, to measure and to go on; the last only measures


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kept_weights_stay_bit_for_bit(dtype):
    model = tiny_model("llama", dtype)
    dense = copy.deepcopy(model)
    report = quiet(model, tokens(), sparsity=0.3)
    for layer in report.layers:
        pruned = model.get_submodule(layer.name).weight
        kept = pruned != 0
        assert (~kept).sum(1).eq(round(0.3 * pruned.shape[1])).all()
        assert torch.equal(pruned[kept], dense.get_submodule(layer.name).weight[kept])


def test_scope_layer_and_patterns():
    model = tiny_model("llama")
    report = quiet(model, tokens(), sparsity=0.7, scope="layer")
    assert all(x.zeros == round(0.7 * x.elements) for x in report.layers)
    model = tiny_model("llama")
    assert quiet(model, tokens(), pattern=(2, 4)).sparsity == 0.5
    weight = model.model.layers[2].mlp.down_proj.weight
    assert ((weight != 0).view(-1, 4).sum(1) == 2).all()


def test_dead_inputs_go_first_and_the_smallest_of_their_weights_before():
    weight = torch.tensor([[1.0, 9.0, 0.1, 8.0, 2.0, 7.0]])
    norms = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    order = wanda_scores(weight, norms).argsort().tolist()[0]
    assert order == [5, 3, 1, 2, 0, 4]


def test_all_inputs_dead_falls_back_to_magnitude():
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wanda_scores(weight, torch.zeros(8)), weight.abs())


def test_zeros_always_go_first():
    weight = torch.tensor([[1e-38, 0.0, 3.0, 0.0]])
    scores = wanda_scores(weight, torch.tensor([1e-30, 1.0, 1.0, 1e30], dtype=torch.float64))
    assert keep_mask(scores, 0.5).int().tolist() == [[1, 0, 1, 0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_impossible_norms(bad):
    with pytest.raises(ValueError, match="input norm"):
        wanda_scores(torch.ones(2, 2), torch.tensor([1.0, bad]))
    with pytest.raises(ValueError, match="input norms for a weight"):
        wanda_scores(torch.ones(2, 2), torch.ones(3))


def spoil_down_proj(model, value, column=0):
    """Overwrite one input feature of the first down_proj on the first token of each sample."""

    def spoil(_, args):
        x = args[0].clone()
        x[:, 0, column] = value
        return (x,)

    down = model.model.layers[0].mlp.down_proj
    down.register_forward_pre_hook(spoil)
    return down


def all_but(layer, model):
    linears = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    return [name for name in linears if name != layer]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_single_broken_activations_are_left_out(value, caplog):
    model, expected = tiny_model("llama"), tiny_model("llama")
    # What comes after the broken activation in the model is broken too: look at one layer only.
    ignore = all_but("model.layers.0.mlp.down_proj", model)
    broken = spoil_down_proj(model, value)
    whole = spoil_down_proj(expected, 0.0)
    with caplog.at_level(logging.WARNING):
        quiet(model, tokens(5), ignore=ignore)
    quiet(expected, tokens(5), ignore=ignore)
    assert torch.equal(broken.weight, whole.weight)
    assert "model.layers.0.mlp.down_proj: 5 of 5760 calibration activations" in caplog.text


def test_activations_broken_throughout_are_named():
    model = tiny_model("llama")
    model.model.layers[1].register_forward_pre_hook(lambda _, args: (args[0] * float("nan"),))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.q_proj: every"):
        quiet(model, tokens())


def test_huge_activations_do_not_overflow():
    model = tiny_model("llama")
    down = spoil_down_proj(model, 1e30)
    quiet(model, tokens(), ignore=all_but("model.layers.0.mlp.down_proj", model))
    assert (down.weight[:, 0] != 0).all()
    assert ((down.weight == 0).sum(1) == 24).all()


def test_a_linear_that_no_token_reaches_is_pruned_by_magnitude(caplog):
    model = tiny_model("llama")
    idle = torch.nn.Linear(16, 8)
    model.model.layers[1].idle = idle
    before = idle.weight.detach().abs().clone()
    with caplog.at_level(logging.WARNING):
        quiet(model, tokens())
    assert torch.equal(idle.weight != 0, keep_mask(before, 0.5, "row"))
    assert "model.layers.1.idle: no calibration token reached this layer" in caplog.text


def test_the_model_is_left_as_it_was():
    model = tiny_model("llama").train()
    forward = model.model.layers[0].forward
    quiet(model, tokens())
    assert model.training
    assert model.model.layers[0].forward == forward
    assert "forward" not in model.model.layers[0].__dict__
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "calibration, arguments, message",
    [
        (torch.zeros(4, dtype=torch.int64), {}, "int64"),
        (torch.zeros(4, 4), {}, "int64"),
        (torch.zeros(0, 4, dtype=torch.int64), {}, "int64"),
        (torch.full((1, 4), VOCAB), {}, "tokens range from 96 to 96"),
        (torch.full((1, 4), -1), {}, "tokens range from -1"),
        (torch.zeros(1, 65, dtype=torch.int64), {}, "context of 64"),
        (tokens(), {"batch_size": 0}, "batch_size"),
        (tokens(), {"scope": "global"}, "wanda scores of different layers"),
    ],
)
def test_impossible_calibrations(calibration, arguments, message):
    model = tiny_model("llama")
    with pytest.raises(ValueError, match=message):
        quiet(model, calibration, **arguments)
    assert all((linear.weight != 0).all() for linear in prunable_linears(model).values())


TEXT = "".join(chr(32 + (i * 7 + i // 11) % 90) for i in range(500))


def test_windows_are_pieces_of_the_text_and_depend_on_the_seed():
    tokenizer = character_tokenizer()
    windows = calibration_windows(tokenizer, TEXT, samples=6, length=20, seed=1)
    assert windows.shape == (6, 20)
    assert windows.dtype == torch.int64
    text = " ".join(map(str, tokenizer(TEXT).input_ids))
    assert all(" ".join(map(str, window)) in text for window in windows.tolist())
    again = calibration_windows(tokenizer, TEXT, samples=6, length=20, seed=1)
    assert torch.equal(windows, again)
    other = calibration_windows(tokenizer, TEXT, samples=6, length=20, seed=2)
    assert not torch.equal(windows, other)


def test_windows_begin_with_bos_where_the_tokenizer_adds_it():
    windows = calibration_windows(character_tokenizer(bos=True), TEXT, samples=3, length=20)
    assert windows.shape == (3, 20)
    assert (windows[:, 0] == 1).all()
    assert (windows[:, 1:] > 2).all()


def test_a_text_of_exactly_one_window():
    windows = calibration_windows(character_tokenizer(), TEXT[:20], samples=2, length=20)
    assert torch.equal(windows[0], windows[1])
    with pytest.raises(ValueError, match="has 20 tokens, but a window takes 21"):
        calibration_windows(character_tokenizer(), TEXT[:20], samples=2, length=21)
    with pytest.raises(ValueError, match="cannot calibrate"):
        calibration_windows(character_tokenizer(), TEXT, samples=0, length=20)
