# SPDX-License-Identifier: Apache-2.0
"""The output head in 8 bits, tied to the embedding or not: loaded, saved, converted, unpacked."""

import json

import pytest
import tiny
import torch
from checkpoints import load_all
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.convert.unpacker import unpack_checkpoint
from flashsparse_plugin.checkpoint.read.directory import ModelDirectory
from flashsparse_plugin.checkpoint.read.soundness import check_packed
from flashsparse_plugin.embedding import SparseEmbedding, TiedHead

TIED = {"llama": False, "llama-tied": True, "opt": True, "gpt-neox": False}
OWNER = {"llama": "lm_head", "llama-tied": "model.embed_tokens", "gpt-neox": "embed_out"}
OWNER["opt"] = "model.decoder.embed_tokens"


def save(path, architecture):
    tiny.build(architecture).save_pretrained(path)
    return path


def load(path, **settings):
    config = {"quantization_config": fs.FlashSparseConfig(**settings)} if settings else {}
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **config).eval()


def decoded(tensors, owner, values):
    """Code x scale in float64, from the tensors of a file and their specification alone."""
    codes, scale = tensors[f"{owner}.weight_packed"], tensors[f"{owner}.weight_scale"]
    numbers = codes.view({"int8": torch.int8, "fp8": torch.float8_e4m3fn}[values]).double()
    return numbers * scale.double()


def assert_head(model, weight, tied):
    """A model's embedding reads rows of a weight, and its head multiplies by it."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    x = torch.randn(3, weight.shape[1], dtype=torch.bfloat16)
    exact = x.double() @ weight.T
    bound = 2**-8 * exact.abs() + 2**-20 * (x.double().abs() @ weight.abs().T)
    assert ((head(x).double() - exact).abs() <= bound).all()
    if tied:
        assert isinstance(embedding, SparseEmbedding) and isinstance(head, TiedHead)
        ids = torch.tensor([[0, 255, 7], [1, 2, 250]])
        assert torch.equal(embedding(ids), weight[ids].to(torch.bfloat16))
    else:
        assert type(embedding) is nn.Embedding and isinstance(head, fs.SparseLinear)


CASES = [("llama", "int8"), ("llama-tied", "fp8"), ("opt", "int8"), ("gpt-neox", "fp8")]


@pytest.mark.parametrize(("architecture", "values"), CASES)
def test_loaded_saved_converted_and_unpacked(tmp_path, architecture, values):
    tied, owner = TIED[architecture], OWNER[architecture]
    dense = save(tmp_path / "dense", architecture)
    model = load(dense, ignore=["re:.*"], head=values)
    count = len(tiny.linears(tiny.build(architecture))) + 1
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    logits = model(ids).logits
    before = load(dense)(ids).logits
    assert (logits - before).norm() < 0.2 * before.norm()
    model.save_pretrained(tmp_path / "saved")
    convert_checkpoint(dense, tmp_path / "out", head=values, pack_all=True)
    weight = None
    for path in (tmp_path / "saved", tmp_path / "out"):
        tensors = load_all(path)
        names = {
            name for name in tensors if name.startswith((f"{owner}.", "lm_head.", "embed_out."))
        }
        streams = ("weight_index", "weight_packed", "weight_scale")
        assert names == {f"{owner}.{own}" for own in streams}
        weight = decoded(tensors, owner, values)
        assert (
            json.loads((path / "config.json").read_text())["quantization_config"]["head"] == values
        )
        again = load(path)
        assert_head(again, weight, tied)
        if path.name == "saved":
            assert torch.equal(again(ids).logits, logits)
    assert_head(model, weight, tied)
    config = fs.FlashSparseConfig(**ModelDirectory(tmp_path / "out").quantization)
    assert check_packed(ModelDirectory(tmp_path / "out"), config) == count
    unpack_checkpoint(tmp_path / "out", tmp_path / "dense-again")
    found = load_all(tmp_path / "dense-again")[f"{owner}.weight"]
    assert torch.equal(found, weight.to(torch.bfloat16))
    whole = again.dequantize()
    out = whole.get_output_embeddings().weight
    assert torch.equal(out, found) and (out is whole.get_input_embeddings().weight) == tied
    whole.save_pretrained(tmp_path / "whole")
    assert torch.equal(load_all(tmp_path / "whole")[f"{owner}.weight"], found)


@pytest.mark.parametrize("architecture", ["llama", "llama-tied"])
def test_head_of_a_packed_checkpoint_is_packed_while_loading(tmp_path, architecture):
    convert_checkpoint(save(tmp_path / "dense", architecture), tmp_path / "out", pack_all=True)
    model = load(tmp_path / "out", head="int8")
    model.save_pretrained(tmp_path / "saved")
    weight = decoded(load_all(tmp_path / "saved"), OWNER[architecture], "int8")
    assert_head(model, weight, TIED[architecture])
    assert_head(load(tmp_path / "saved"), weight, TIED[architecture])


def test_inspect_shows_a_tied_head(tmp_path):
    dense = save(tmp_path / "dense", "llama-tied")
    convert_checkpoint(dense, tmp_path / "out", head="int8", pack_all=True)
    found = {layer.name: layer for layer in inspect_checkpoint(tmp_path / "out").layers}
    assert found["lm_head"].scheme == "nm_vector(1:1, L=128, int8)"
    assert found["lm_head"].bytes_stored < 0.6 * found["lm_head"].bytes_dense


def test_one_copy_in_memory(tmp_path):
    model = load(save(tmp_path / "dense", "llama-tied"), ignore=["re:.*"], head="int8")
    own = {name for name, _ in model.named_parameters() if "embed" in name or "head" in name}
    assert own == {f"model.embed_tokens.{name}" for name in ("values", "columns", "scales")}
    weight = decoded(model.state_dict(), "model.embed_tokens", "int8").float()
    moved = model.to(torch.float32)
    x = torch.randn(2, 64)
    torch.testing.assert_close(moved.lm_head(x), x @ weight.T, rtol=1e-5, atol=1e-5)
    assert moved.get_input_embeddings()(torch.tensor([5])).dtype == torch.float32


def test_what_is_refused(tmp_path):
    gemma = tiny.build("llama-tied")

    class Scaled(nn.Embedding):
        pass

    dense = save(tmp_path / "dense", "llama-tied")
    with pytest.raises(fs.FormatError, match="head.*int8.*fp8"):
        fs.FlashSparseConfig(head="int4")
    with pytest.raises(fs.FormatError, match="'lm_head'.*head='int8' and layers="):
        load(dense, head="int8", layers={"lm_head": {"format": "2:4"}})
    with pytest.raises(fs.FormatError, match="no output head"):
        config = fs.FlashSparseConfig(head="int8")
        AutoModel.from_pretrained(dense, quantization_config=config)
    gemma.model.embed_tokens.__class__ = Scaled
    from flashsparse_plugin.checkpoint.read.head import head_of

    with pytest.raises(fs.FormatError, match="'lm_head'.*Scaled does more.*Remedy"):
        head_of(gemma, "int8")
    with pytest.raises(fs.FormatError, match="head.*int8"):
        convert_checkpoint(dense, tmp_path / "out", head="int4")
