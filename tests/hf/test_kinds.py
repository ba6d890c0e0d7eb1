# SPDX-License-Identifier: Apache-2.0
"""Layers that are nn.Linear in all but name, and code that reads a layer's weight."""

import families
import pytest
import torch
import transformers
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.models.idefics.modeling_idefics import IdeficsDecoupledLinear
from transformers.pytorch_utils import Conv1D

import flashsparse_plugin as fs
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.modules import (
    is_linear,
    linear_modules,
    shape_of,
    weight_of,
    why_not_linear,
)

pytestmark = pytest.mark.oldest_transformers


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 5), True),
        (type("Same", (nn.Linear,), {})(3, 5), True),
        (FalconLinear(3, 5), True),
        (Conv1D(5, 3), True),
        (IdeficsDecoupledLinear(3, 5, 0), False),
        (nn.MultiheadAttention(4, 2).out_proj, False),
        (nn.Embedding(5, 3), False),
    ],
)
def test_a_layer_is_linear_by_its_forward(module, expected):
    assert is_linear(module) == expected
    if expected:
        assert shape_of(module) == (5, 3)
        x = torch.randn(2, 3)
        assert torch.allclose(module(x), x @ weight_of(module).T + module.bias, atol=1e-6)
        packed = SparseLinear.from_linear(module.bfloat16())
        assert torch.equal(packed.weight, weight_of(module))
    elif isinstance(module, nn.Linear):
        assert "weight itself" in why_not_linear(module) or "Idefics" in why_not_linear(module)


@pytest.mark.parametrize(
    ("architecture", "kind"), [("GPT2LMHeadModel", Conv1D), ("FalconForCausalLM", FalconLinear)]
)
def test_dequantize_gives_back_the_kind_of_layer(architecture, kind, tmp_path):
    families.build(architecture).save_pretrained(tmp_path / "dense")
    load = getattr(transformers, architecture).from_pretrained
    expected = families.answer(load(tmp_path / "dense", dtype=torch.float32))
    model = load(
        tmp_path / "dense", dtype=torch.float32, quantization_config=fs.FlashSparseConfig()
    )
    count = sum(isinstance(module, SparseLinear) for module in model.modules())
    assert count == 8 and not any(type(module) is kind for module in model.modules())
    model.save_pretrained(tmp_path / "packed")
    again = load(tmp_path / "packed", dtype=torch.float32).dequantize()
    assert sum(type(module) is kind for module in again.modules()) == count
    assert torch.equal(families.answer(again), expected)
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(families.answer(load(tmp_path / "again", dtype=torch.float32)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mamba_multiplies_by_the_weight_of_a_layer(dtype, tmp_path):
    """In the dtype of its activations, which is not that of the packed values."""
    families.build("MambaForCausalLM").save_pretrained(tmp_path)
    load = transformers.MambaForCausalLM.from_pretrained
    model = load(tmp_path, dtype=dtype, quantization_config=fs.FlashSparseConfig(dtype="float16"))
    layer = model.backbone.layers[0].mixer.dt_proj
    assert layer.scheme.dtype == torch.float16 and layer.weight.dtype == dtype
    expected = families.answer(load(tmp_path, dtype=dtype))
    assert (families.answer(model) - expected).abs().max() <= 0.02 * expected.abs().max()
    model.double()
    assert layer.weight.dtype == torch.float64


def test_routers_are_neither_pruned_nor_packed_while_loading(tmp_path):
    families.build("JambaForCausalLM").save_pretrained(tmp_path / "dense")
    load = transformers.JambaForCausalLM.from_pretrained
    dense = load(tmp_path / "dense", dtype=torch.bfloat16)
    names = [name for name in linear_modules(dense) if name.endswith(".router")]
    assert len(names) == 1
    packing = fs.FlashSparseConfig(pruning="magnitude", sparsity=0.9)
    model = load(tmp_path / "dense", dtype=torch.bfloat16, quantization_config=packing)
    model.save_pretrained(tmp_path / "packed")
    for kept in (model, load(tmp_path / "packed", dtype=torch.bfloat16)):
        for name in names:
            router = kept.get_submodule(name)
            assert type(router) is nn.Linear
            assert torch.equal(router.weight, dense.get_submodule(name).weight)
    named = fs.FlashSparseConfig(layers={names[0]: {"format": "tiled_csl"}})
    obeyed = load(tmp_path / "dense", quantization_config=named)
    assert isinstance(obeyed.get_submodule(names[0]), SparseLinear)


@pytest.mark.parametrize("ignore", [["lm_head"], []])
def test_classification_heads_stay_dense_unless_the_list_is_emptied(ignore, tmp_path):
    small = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.RobertaConfig(**small, intermediate_size=48, num_labels=8)
    torch.manual_seed(0)
    transformers.RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    load = transformers.RobertaForSequenceClassification.from_pretrained
    packing = fs.FlashSparseConfig(ignore=ignore, pruning="magnitude", sparsity=0.5)
    model = load(tmp_path, quantization_config=packing)
    assert isinstance(model.roberta.encoder.layer[0].output.dense, SparseLinear)
    for layer in (model.classifier.dense, model.classifier.out_proj):
        assert isinstance(layer, SparseLinear) is (not ignore)
