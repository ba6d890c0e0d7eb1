# SPDX-License-Identifier: Apache-2.0
"""`flashsparse fit` on tiny models: what is measured, chosen, written, and executed."""

import copy
import json

import families
import pytest
import torch
from checkpoints import load_all
from safetensors.torch import load_file
from tiny_causal_lms import VOCAB, character_tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import inspect_checkpoint
from flashsparse_plugin.cli import app
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.fitting import (
    CHOICES,
    Recipe,
    choose_by_bits,
    estimated_speed,
    measure_losses,
)
from flashsparse_plugin.pruning import prunable_linears
from flashsparse_plugin.pruning.fisher import fisher_information

TOKENS = torch.randint(3, VOCAB, (4, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config).eval().bfloat16()


@pytest.fixture(scope="module")
def measured(model):
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found = measure_losses(model, prunable_linears(model), [TOKENS], CHOICES, "wanda", False)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    return found


def shapes(model, names):
    return {name: tuple(model.get_submodule(name).weight.shape) for name in names}


def test_the_loss_is_that_of_the_outputs(model, measured):
    name = "model.layers.0.self_attn.q_proj"
    seen = []
    linear = model.get_submodule(name)
    hook = linear.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(input_ids=TOKENS)
    hook.remove()
    x = seen[0].flatten(0, 1).float().detach()
    by_title = {each.choice.title: each for each in measured[name]}
    assert len(by_title) == len(CHOICES) == 26
    own = by_title["no zeros, int8"]
    packed = fs.pack(linear.weight.detach(), "1:1-L128-int8")
    y, off = x @ linear.weight.detach().float().T, x @ packed.unpack().float().T
    assert own.error == pytest.approx(float((y - off).square().sum() / y.square().sum()), rel=1e-3)
    assert own.nbytes == packed.nbytes and own.density > 0.99
    assert by_title["16 bits"].error == by_title["16 bits"].loss == 0
    assert by_title["16 bits"].nbytes == 2 * 256 * 256
    exact = by_title["exact, 12 bits"]
    assert exact.loss == 0 and exact.nbytes == pytest.approx(1.5 * 256 * 256, rel=0.05)


def test_fisher_information_tells_how_far_small_errors_move_predictions(model):
    """Noise in the outputs of a layer, as large in each as its information is small."""
    dense = copy.deepcopy(model).float()
    dense.lm_head.weight.data *= 8  # predictions of some certainty
    linears, batches = prunable_linears(dense), list(TOKENS.repeat(8, 1).split(8))
    found = fisher_information(dense, linears, batches, progress=False)
    assert all(each.requires_grad for each in dense.parameters())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        before = dense(input_ids=TOKENS).logits.log_softmax(-1)
        for name, linear in linears.items():
            noise = (1e-3 / found[name].clamp_min(1e-12)).sqrt().float() * 0.1
            hook = linear.register_forward_hook(
                lambda _, __, y, noise=noise: y + noise * torch.randn(y.shape, generator=generator)
            )
            moved = []
            for _ in range(4):
                after = dense(input_ids=TOKENS).logits.log_softmax(-1)
                moved.append((before.exp() * (before - after)).sum(-1).mean())
            hook.remove()
            expected = float((found[name] * noise.double().square()).sum() / 2)
            assert 0.85 < float(torch.stack(moved).mean()) / expected < 1.15, name


def test_predictions_and_gradients_that_are_no_numbers_are_refused(model):
    broken = copy.deepcopy(model).float()
    linears = prunable_linears(broken)
    scale = broken.model.layers[1].post_attention_layernorm.weight
    scale.data[0] = torch.nan
    with pytest.raises(ValueError, match="the model predicts NaN .* load it in bfloat16"):
        fisher_information(broken, linears, [TOKENS], progress=False)
    assert not any(each._forward_hooks for each in broken.modules())
    scale.data[0] = 1
    name = "model.layers.0.mlp.up_proj"
    linears[name].register_full_backward_pre_hook(lambda _, gradients: (gradients[0] * torch.nan,))
    with pytest.raises(ValueError, match="a gradient is NaN"):
        fisher_information(broken, linears, [TOKENS], progress=False)


def test_what_keeps_more_loses_less(measured):
    for own in measured.values():
        losses = {each.choice.title: each.error for each in own}
        sizes = {each.choice.title: each.nbytes for each in own}
        order = ["no zeros", "2:4, 50% dense", "2:4, 25% dense", "2:4, 12.5% dense", "2:4"]
        for values in ("fp8", "int8", "int4", "int4 by 32"):
            for more, less in zip(order, [*order[1:], "8:32-L32"], strict=False):
                assert losses[f"{more}, {values}"] < losses[f"{less}, {values}"]
                assert sizes[f"{more}, {values}"] > sizes[f"{less}, {values}"]


@pytest.mark.parametrize("bits", [3.2, 4.5, 6.0, 16.0])
def test_the_bits_are_met_and_more_lose_less(model, measured, bits):
    own = shapes(model, measured)
    chosen = choose_by_bits(measured, own, bits)
    recipe = Recipe.of("tiny", "wanda", chosen, own)
    assert min(bits, 12.5) - 0.6 < recipe.bits <= bits
    if bits == 16:
        formats = {each.format for each in recipe.layers.values()}
        assert recipe.rules == {} and formats == {"lossless"} and recipe.bits < 12.6
    assert estimated_speed(chosen, own, Target.named("H200", 16)) > 0


def test_a_recipe_is_written_read_and_refused(measured, model, tmp_path):
    chosen = {name: own[number % len(own)] for number, (name, own) in enumerate(measured.items())}
    recipe = Recipe.of("tiny", "wanda", chosen, shapes(model, chosen))
    path = tmp_path / "recipe.json"
    recipe.write(path)
    assert Recipe.read(path) == recipe
    data = json.loads(path.read_text())
    name = next(iter(data["layers"]))
    for change, message in (
        ({"flashsparse_recipe": 2}, "flashsparse_recipe: Input should be 1"),
        ({"layers": {}}, "layers: Dictionary should have at least 1 item"),
        ({"layers": {name: {**data["layers"][name], "format": "banana"}}}, "unknown format"),
        ({"layers": {name: {**data["layers"][name], "dense": 0.5}}}, "dense"),
        ({"layers": {name: {**data["layers"][name], "pattern": [5, 4]}}}, "pattern 5:4 is invalid"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
    ):
        path.write_text(json.dumps(data | change))
        with pytest.raises(ValueError, match=rf"recipe.json is no recipe \(.*{message}.*Remedy"):
            Recipe.read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is no recipe"):
        Recipe.read(path)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def said(result):
    """Without the frame, and the ends of its lines."""
    return " ".join(result.output.replace("│", "").split())


def test_fit_prune_and_convert(tmp_path, model):
    """Of a float32 model, which convert packs in bfloat16: the bits are those of that."""
    source, text = tmp_path / "model", tmp_path / "text.txt"
    copy.deepcopy(model).float().save_pretrained(source)
    character_tokenizer().save_pretrained(source)
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    recipe, windows = tmp_path / "recipe.json", ("--samples", 4, "--length", 32)
    how = ("--bits", 3.9, "--calibration", text, *windows)
    made = run("fit", source, recipe, *how, "--for", "H200", "--batch", 16)
    assert made.exit_code == 0, made.output
    assert "dense in 16 bits, estimated" in made.output and "all" in made.output
    found = Recipe.read(recipe)
    assert 3.3 < found.bits <= 3.9 and found.rules
    again = run("fit", source, recipe, *how)
    assert again.exit_code == 2 and "exists already" in said(again)
    few = run("fit", source, tmp_path / "few.json", *how, "--bits", 0.5)
    assert few.exit_code == 2 and "is the least there is" in said(few)

    pruned, packed = tmp_path / "pruned", tmp_path / "packed"
    made = run("prune", source, pruned, "--recipe", recipe, "--calibration", text, *windows)
    assert made.exit_code == 0, made.output
    assert f"convert ROUNDED PACKED --recipe {recipe}" in made.output
    weights = load_file(pruned / "model.safetensors")
    for name, layer in found.layers.items():
        zeros = float((weights[f"{name}.weight"] == 0).float().mean())
        rule = layer.rule
        assert zeros == pytest.approx(0.0 if rule is None else rule.sparsity, abs=0.02)
    assert found.roundings  # some layers have 4 bits
    rounded = tmp_path / "rounded"
    made = run("round", pruned, rounded, "--recipe", recipe, "--calibration", text, *windows)
    assert made.exit_code == 0, made.output
    before, weights = weights, load_file(rounded / "model.safetensors")
    changed = {name for name in weights if not torch.equal(before[name], weights[name])}
    assert changed == {f"{name}.weight" for name in found.roundings}
    made = run("convert", rounded, packed, "--recipe", recipe)
    assert made.exit_code == 0, made.output
    inside = {each.name: each for each in inspect_checkpoint(packed).layers}
    schemes = {each.scheme for each in inside.values() if each.scheme is not None}
    assert len(schemes) > 2 and f"({len(schemes)} formats, " in made.output
    assert all(f" layers: {each}" in made.output for each in schemes)
    for name, layer in found.layers.items():
        assert (inside[name].format is None) == (layer.format == "dense")
    held = sum(each.bytes_stored for name, each in inside.items() if name in found.layers)
    whole = sum(a * b for a, b in (inside[name].shape for name in found.layers))
    assert 8 * held / whole == pytest.approx(found.bits, rel=0.02)
    loaded = fs_model(packed)
    assert torch.isfinite(loaded(input_ids=TOKENS).logits).all()


def test_experts_are_not_fitted_and_fit_says_so(tmp_path):
    source, text, recipe = tmp_path / "model", tmp_path / "text.txt", tmp_path / "recipe.json"
    families.build("GptOssForCausalLM").save_pretrained(source)
    character_tokenizer().save_pretrained(source)
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    how = ("--bits", 6, "--calibration", text, "--samples", 4, "--length", 32)
    made = run("fit", source, recipe, *how)
    assert made.exit_code == 0, made.output
    assert "experts are 75% of the weights, and are not fitted" in said(made)
    made = run("convert", source, tmp_path / "packed", "--recipe", recipe)
    assert made.exit_code == 0, made.output
    layers = inspect_checkpoint(tmp_path / "packed").layers
    experts = [each for each in layers if each.kind.startswith("experts.")]
    assert len(experts) == 24 and not any(each.format for each in experts)
    assert [each.name for each in layers if each.format]
    before, after = load_file(source / "model.safetensors"), load_all(tmp_path / "packed")
    own = [name for name in before if "experts" in name]
    assert own and all(torch.equal(before[name], after[name]) for name in own)


def fs_model(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)


def test_a_recipe_without_zeros_is_packed_as_it_is(tmp_path, model, measured):
    whole = {name: own[number % 2] for number, (name, own) in enumerate(measured.items())}
    assert {own.choice.format for own in whole.values()} == {"dense", "lossless"}
    recipe = tmp_path / "recipe.json"
    Recipe.of("tiny", "wanda", whole, shapes(model, whole)).write(recipe)
    model.save_pretrained(tmp_path / "model")
    made = run(
        "prune", tmp_path / "model", tmp_path / "out", "--recipe", recipe, "--method", "magnitude"
    )
    assert made.exit_code == 2
    assert "keeps every weight: pack the model" in said(made)
    made = run("convert", tmp_path / "model", tmp_path / "packed", "--recipe", recipe)
    assert made.exit_code == 0, made.output
    logits = [fs_model(tmp_path / each)(input_ids=TOKENS).logits for each in ("model", "packed")]
    torch.testing.assert_close(*logits, rtol=0.02, atol=0.02)
    layers = {each.name: each.format for each in inspect_checkpoint(tmp_path / "packed").layers}
    assert all((layers[n] == "lossless") == (e.choice.format != "dense") for n, e in whole.items())


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        ("prune", ("--pattern", "2:4"), "the recipe determines the zeros: leave --pattern out"),
        ("prune", ("--dense", "0.5"), "leave --dense out"),
        ("convert", ("--format", "2:4"), "the recipe names the formats: leave --format"),
    ],
)
def test_a_recipe_says_it_all(tmp_path, model, command, more, message):
    source, recipe = tmp_path / "model", tmp_path / "recipe.json"
    model.save_pretrained(source)
    recipe.write_text("{}")
    result = run(command, source, tmp_path / "out", "--recipe", recipe, *more)
    assert result.exit_code == 2 and message in said(result)


def test_a_recipe_of_another_model_is_refused(model):
    from flashsparse_plugin.pruning import prune
    from flashsparse_plugin.pruning.rule import PruningRule

    small = nn.Module()
    small.proj = nn.Linear(8, 8)
    with pytest.raises(ValueError, match="the rules name 'other', which is no linear layer"):
        prune(small, "magnitude", rules={"other": PruningRule(pattern=(2, 4))}, progress=False)
