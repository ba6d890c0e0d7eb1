# SPDX-License-Identifier: Apache-2.0
"""Exact weights in models: converted and back, packed while loading, head and embedding, LoRA."""

import hashlib
import logging

import pytest
import tiny
import torch
from checkpoints import load_all
from peft import LoraConfig, get_peft_model
from tiny import linears
from transformers import AutoModelForCausalLM, AutoTokenizer

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.convert.unpacker import unpack_checkpoint
from flashsparse_plugin.embedding import SparseEmbedding

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
EXACT = {"format": "lossless", "head": "lossless"}


@pytest.fixture(scope="module", params=["llama", "llama-tied"])
def dense(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    tiny.build(request.param).to(torch.bfloat16).save_pretrained(path)
    return path


def load(path, dtype=torch.float32, **settings):
    config = {"quantization_config": fs.FlashSparseConfig(**settings)} if settings else {}
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **config).eval()


def digests(path):
    tensors = load_all(path)
    return {
        name: hashlib.sha256(each.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, each in tensors.items()
    }


def close(model, path):
    """By the same weights in float32; sums come in another order."""
    ours, theirs = model(IDS).logits, load(path)(IDS).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    return ours


def test_a_checkpoint_comes_back_with_the_checksums_that_it_had(dense, tmp_path):
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True, **EXACT)
    assert (
        report.rounded_values == 0 and len(report.packed) == len(linears(tiny.build("llama"))) + 1
    )
    packed = load(tmp_path / "out")
    close(packed, dense)
    unpack_checkpoint(tmp_path / "out", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(dense)
    load(tmp_path / "out", torch.bfloat16).save_pretrained(tmp_path / "saved")
    assert digests(tmp_path / "saved") == digests(tmp_path / "out")
    found = inspect_checkpoint(tmp_path / "out")
    assert {layer.scheme for layer in found.layers} == {"lossless"}
    assert found.sparsity == pytest.approx(0, abs=0.01)


def test_packed_while_loading_with_head_and_embedding(dense):
    model = load(dense, **EXACT)
    close(model, dense)
    weight = load(dense).get_output_embeddings().weight
    embedding, tied = model.get_input_embeddings(), dense.name.startswith("llama-tied")
    assert isinstance(embedding, SparseEmbedding) == tied
    assert torch.equal(embedding(IDS), load(dense).get_input_embeddings()(IDS))
    assert torch.equal(model.get_output_embeddings().weight.float(), weight)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    adapted(input_ids=IDS, labels=IDS).loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in adapted.parameters())


def test_what_would_be_rounded_or_does_not_pay(dense, tmp_path, caplog):
    model = load(dense)
    with torch.no_grad():
        far = model.model.layers[0].mlp.up_proj.weight
        far.view(-1)[::100] = 2.0**-60
    model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path / "far")
    with caplog.at_level(logging.WARNING):
        loaded = load(tmp_path / "far", **EXACT)
    assert "up_proj" in caplog.text and "1.01% of its elements are exceptions" in caplog.text
    assert type(loaded.model.layers[0].mlp.up_proj) is torch.nn.Linear
    close(loaded, tmp_path / "far")
    model = model.float()
    model.save_pretrained(tmp_path / "wide")  # bfloat16 numbers all
    report = convert_checkpoint(tmp_path / "wide", tmp_path / "narrow", pack_all=True, **EXACT)
    assert report.rounded_values == 0 and not any("rounded" in each for each in report.warnings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.float() * 1.001)
    model.half().save_pretrained(tmp_path / "half")
    with pytest.raises(fs.FormatError, match="float16 values are no bfloat16.*rounds nothing"):
        load(tmp_path / "half", **EXACT)
    with pytest.raises(fs.FormatError, match="rounds nothing.*Remedy"):
        convert_checkpoint(tmp_path / "half", tmp_path / "out", **EXACT)


@pytest.mark.slow
def test_real_weights_continue_a_text_as_dense_ones_do(real_dir):
    tokenizer = AutoTokenizer.from_pretrained(real_dir)
    given = tokenizer("Once upon a time, in a small village by the sea,", return_tensors="pt")
    told = [
        load(real_dir, **settings).generate(**given, max_new_tokens=12, do_sample=False).tolist()
        for settings in ({}, EXACT)
    ]
    assert told[0] == told[1]
