# SPDX-License-Identifier: Apache-2.0
"""Models that torch.nn.utils.prune has masked, saved without prune.remove."""

import pytest
import torch
from checkpoints import load_all
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_causal_lms import tiny_model
from torch.nn.utils import prune as torch_prune
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.files.headers import CheckpointError
from flashsparse_plugin.checkpoint.foreign import PRUNE_MASK, PRUNE_MASKS, dense_weights
from flashsparse_plugin.checkpoint.read.directory import ModelDirectory
from flashsparse_plugin.cli import app

NAME = "model.layers.0.mlp.up_proj"
TOKENS = torch.arange(3, 19)[None]


@pytest.fixture
def masked(tmp_path):
    """A directory as `save_pretrained` writes it, and the model that it was saved from."""
    model = tiny_model("llama")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            torch_prune.l1_unstructured(module, "weight", 0.6)
    model.save_pretrained(tmp_path / "masked")
    return tmp_path / "masked", model


def made_permanent(model):
    """The weights after prune.remove, by name."""
    for module in model.modules():
        if torch_prune.is_pruned(module) and isinstance(module, torch.nn.Linear):
            torch_prune.remove(module, "weight")
    return model.state_dict()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    kind=st.sampled_from([torch.bool, torch.uint8, torch.float16, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_what_a_mask_drops_is_zero_and_the_rest_keeps_its_bits(rows, columns, dtype, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    weight[0, 0] = torch.inf  # which a product with 0 would make NaN
    kept = torch.rand(weight.shape, generator=generator) < 0.5
    stream = [("x.weight_mask", kept.to(kind)), ("x.bias", weight[0]), ("x.weight_orig", weight)]
    found = dict(dense_weights(stream, PRUNE_MASK))
    assert list(found) == ["x.bias", "x.weight"]
    assert torch.equal(found["x.weight"], torch.where(kept, weight, 0))


def test_a_model_is_the_one_that_prune_remove_would_give(masked):
    path, model = masked
    loaded = AutoModelForCausalLM.from_pretrained(path)
    config = fs.FlashSparseConfig(dtype="bfloat16")
    packed = AutoModelForCausalLM.from_pretrained(path, quantization_config=config)
    right = made_permanent(model)
    assert all(torch.equal(tensor, right[name]) for name, tensor in loaded.state_dict().items())
    layer = packed.get_submodule(NAME)
    assert isinstance(layer, fs.SparseLinear)
    assert torch.equal(layer.packed.unpack(), right[f"{NAME}.weight"].to(torch.bfloat16))


@pytest.fixture
def masked_biases(tmp_path):
    """The same with masks on biases: of layers with a masked weight, of others, and of a norm."""
    torch.manual_seed(0)
    model = tiny_model("opt")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm) and name != "lm_head":
            module.bias.data.normal_()
            torch_prune.random_unstructured(module, "bias", 0.5)
            if name.endswith(("fc1", "q_proj")):
                torch_prune.l1_unstructured(module, "weight", 0.6)
    model.save_pretrained(tmp_path / "masked")
    for module in model.modules():
        for parameter in ("weight", "bias"):
            if hasattr(module, f"{parameter}_mask"):
                torch_prune.remove(module, parameter)
    return tmp_path / "masked", model.eval()


@torch.no_grad()
def test_a_masked_bias_is_read_as_a_masked_weight_is(masked_biases, tmp_path):
    path, model = masked_biases
    right, name = model.state_dict(), "model.decoder.layers.0.fc1"
    wanted = model(TOKENS).logits
    dense = AutoModelForCausalLM.from_pretrained(path)
    assert torch.equal(dense(TOKENS).logits, wanted)
    config = fs.FlashSparseConfig(dtype="float16")
    at_load = AutoModelForCausalLM.from_pretrained(path, quantization_config=config)
    convert_checkpoint(path, tmp_path / "packed", dtype=torch.float16, pack_all=True)
    for packed in (at_load, AutoModelForCausalLM.from_pretrained(tmp_path / "packed")):
        layer = packed.get_submodule(name)
        assert isinstance(layer, fs.SparseLinear)
        assert (layer.bias == 0).float().mean() == 0.5
        assert torch.equal(layer.bias, right[f"{name}.bias"].to(layer.bias.dtype))
        error = (packed(TOKENS).logits - wanted).abs().max()
        assert error <= 0.01 * wanted.abs().max()
    assert {each.name for each in inspect_checkpoint(path).layers} >= {name}
    more = ["prune", path, tmp_path / "more", "--method", "magnitude", "--sparsity", "0.8"]
    result = CliRunner().invoke(app, [str(each) for each in more])
    assert result.exit_code == 0, result.stderr
    pruned = load_all(tmp_path / "more")
    assert not [key for key in pruned if key.endswith(("_orig", "_mask"))]
    assert torch.equal(pruned[f"{name}.bias"], right[f"{name}.bias"])


def test_masks_of_weight_and_bias_come_in_any_order():
    weight, bias = torch.ones(2, 3), torch.ones(2)
    stream = [
        ("x.bias_mask", torch.tensor([1.0, 0.0])),
        ("x.weight_orig", weight),
        ("x.bias_orig", bias),
        ("x.weight_mask", torch.eye(2, 3)),
    ]
    found = stream
    for layout in PRUNE_MASKS:
        found = [*dense_weights(found, layout)]
    assert {name: tensor.tolist() for name, tensor in found} == {
        "x.bias": [1.0, 0.0],
        "x.weight": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    }


def test_commands_take_it(masked, tmp_path):
    path, model = masked
    found = inspect_checkpoint(path)
    layer = next(each for each in found.layers if each.name == NAME)
    assert layer.sparsity == pytest.approx(0.6, abs=0.01)
    report = convert_checkpoint(path, tmp_path / "packed", dtype=torch.bfloat16, pack_all=True)
    assert len(report.packed) == 21
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    right = made_permanent(model)
    weight = packed.get_submodule(NAME).packed.unpack()
    assert torch.equal(weight, right[f"{NAME}.weight"].to(torch.bfloat16))
    more = ["prune", path, tmp_path / "more", "--method", "magnitude", "--sparsity", "0.8"]
    result = CliRunner().invoke(app, [str(each) for each in more])
    assert result.exit_code == 0, result.stderr
    pruned = load_all(tmp_path / "more")
    assert pruned.keys() == right.keys()
    assert (pruned[f"{NAME}.weight"] == 0).float().mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask * 0.5, "other elements than 0 and 1"),
        (lambda mask: mask.masked_fill(mask == 0, torch.nan), "other elements than 0 and 1"),
        (lambda mask: mask[:-1], r"its mask is torch\.float32 \["),
    ],
)
def test_a_hostile_mask_is_refused_by_name(masked, tmp_path, change, message):
    path, _ = masked
    tensors = load_file(path / "model.safetensors")
    tensors[f"{NAME}.weight_mask"] = change(tensors[f"{NAME}.weight_mask"]).contiguous()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"{NAME}\.weight.*{message}"):
        convert_checkpoint(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_weight_that_is_there_twice_is_refused(masked):
    path, _ = masked
    tensors = load_file(path / "model.safetensors")
    tensors[f"{NAME}.weight"] = tensors[f"{NAME}.weight_orig"].clone()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="both plain and as weight_mask, weight_orig"):
        ModelDirectory(path)
