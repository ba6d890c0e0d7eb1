# SPDX-License-Identifier: Apache-2.0
"""A packed model says what the dense model with the same zeros says, whatever the architecture."""

import pytest
import tiny
import torch
from transformers import AutoModel

import flashsparse_plugin as fs

pytestmark = pytest.mark.oldest_transformers

architectures = pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)


def check_equal(model, reference, exact):
    """Same tokens; logits as close to float64's as those of the dense model are."""
    layers = tiny.sparse_layers(model)
    assert layers.keys() == tiny.linears(reference).keys()
    tokens = tiny.generate(reference)
    assert len(torch.unique(tokens[:, 9:])) > 3
    assert torch.equal(tiny.generate(model), tokens)
    tiny.assert_as_exact(model, reference, exact)


@architectures
def test_packed_equals_masked_dense(architecture, checkpoints):
    paths = checkpoints(architecture)
    reference = tiny.load(paths.masked)
    exact = tiny.logits(tiny.load(paths.masked, torch.float64))

    loaded = tiny.load(paths.packed)
    check_equal(loaded, reference, exact)

    while_loading = tiny.load(paths.masked, quantization_config=fs.FlashSparseConfig())
    check_equal(while_loading, reference, exact)

    pruned = fs.FlashSparseConfig(pruning="magnitude", sparsity=tiny.SPARSITY)
    check_equal(tiny.load(paths.dense, quantization_config=pruned), reference, exact)

    for name, layer in tiny.sparse_layers(loaded).items():
        assert torch.equal(layer.weight, reference.get_submodule(name).weight.bfloat16()), name


@architectures
def test_round_trip_is_bit_identical(architecture, checkpoints, tmp_path):
    paths = checkpoints(architecture)
    model = tiny.load(paths.packed)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    before, after = tiny.packed_tensors(model), tiny.packed_tensors(tiny.load(tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert tiny.quantization_config(tmp_path) == tiny.quantization_config(paths.packed)


@architectures
def test_dequantize_gives_back_a_dense_model(architecture, checkpoints, tmp_path):
    paths = checkpoints(architecture)
    tokens = tiny.generate(tiny.load(paths.masked))
    asked = tiny.load(paths.packed, quantization_config=fs.FlashSparseConfig(dequantize=True))
    called = tiny.load(paths.packed).dequantize()
    for number, model in enumerate((asked, called)):
        assert not tiny.sparse_layers(model)
        assert torch.equal(tiny.generate(model), tokens)
        path = tmp_path / str(number)
        model.save_pretrained(path)
        assert tiny.quantization_config(path) is None
        assert torch.equal(tiny.generate(tiny.load(path)), tokens)


@architectures
def test_base_model_of_a_causal_checkpoint(architecture, checkpoints, tmp_path):
    """The names in the file have a prefix that the base model's have not, and the other way."""
    paths = checkpoints(architecture)
    whole = tiny.load(paths.packed)
    base = AutoModel.from_pretrained(paths.packed, dtype=torch.float32)
    assert len(tiny.sparse_layers(base)) == len(tiny.sparse_layers(whole))
    given = tiny.prompt()
    with torch.no_grad():
        assert torch.equal(
            base(**given).last_hidden_state, whole.base_model(**given).last_hidden_state
        )
    base.save_pretrained(tmp_path)
    again = tiny.load(tmp_path)
    assert len(tiny.sparse_layers(again)) == len(tiny.sparse_layers(whole))
    with torch.no_grad():
        assert torch.equal(
            again.base_model(**given).last_hidden_state, base(**given).last_hidden_state
        )
