# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of llama2.c as transformers directories."""

import struct

import pytest
import stories15m
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

HIDDEN, INNER, HEADS, CONTEXT = 8, 12, 2, 16
SIZE = HIDDEN // HEADS
PIECES = ["<unk>", "\n<s>\n", "\n</s>\n", *map(chr, range(256)), " ", "a", "b", " a", " ab"]
SHAPES = {  # in the order of the file
    "embedding": (len(PIECES), HIDDEN),
    "norm": (HIDDEN,),
    **dict.fromkeys("qkvo", (HIDDEN, HIDDEN)),
    "norm_mlp": (HIDDEN,),
    "gate": (INNER, HIDDEN),
    "down": (HIDDEN, INNER),
    "up": (INNER, HIDDEN),
    "norm_end": (HIDDEN,),
    "rope": (2, CONTEXT, SIZE // 2),
}


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def converted(weights, tmp_path_factory):
    sizes = (HIDDEN, INNER, 1, HEADS, HEADS, len(PIECES), CONTEXT)
    data = struct.pack("<7i", *sizes) + b"".join(w.numpy().tobytes() for w in weights.values())
    data += struct.pack("<i", 9)
    for number, piece in enumerate(PIECES):
        text = piece.encode()
        data += struct.pack("<fi", -float(number), len(text)) + text
    out = tmp_path_factory.mktemp("llama2c") / "model"
    stories15m.convert(data, out)
    return out


def as_llama2c(weights, ids):
    """The logits, in the words of run.c."""
    count = len(ids)
    angles = torch.arange(count)[:, None] / 10000 ** (torch.arange(0, SIZE, 2) / SIZE)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(x):
        return torch.view_as_real(torch.view_as_complex(x.view(count, HEADS, -1, 2)) * turn)

    x = weights["embedding"][ids]
    y = F.rms_norm(x, (HIDDEN,), weights["norm"], 1e-5)
    q, k = (turned(y @ weights[name].T).reshape(count, HEADS, SIZE) for name in "qk")
    v = (y @ weights["v"].T).view(count, HEADS, SIZE)
    heads = [each.transpose(0, 1)[None] for each in (q, k, v)]
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True)[0].transpose(0, 1)
    x = x + mixed.reshape(count, HIDDEN) @ weights["o"].T
    y = F.rms_norm(x, (HIDDEN,), weights["norm_mlp"], 1e-5)
    x = x + (F.silu(y @ weights["gate"].T) * (y @ weights["up"].T)) @ weights["down"].T
    return F.rms_norm(x, (HIDDEN,), weights["norm_end"], 1e-5) @ weights["embedding"].T


def test_the_model_computes_what_llama2c_does(weights, converted):
    model, told = AutoModelForCausalLM.from_pretrained(converted, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    ids = torch.tensor([1, 260, 7, 42, 259, 260])
    torch.testing.assert_close(model(ids[None]).logits[0], as_llama2c(weights, ids))


def test_the_tokenizer_has_the_pieces_and_falls_back_to_bytes(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab a?").input_ids) == (
        ["<s>", "\u2581ab", "\u2581a", "<0x3F>"]
    )
    assert tokenizer.decode(tokenizer("ab a?").input_ids, skip_special_tokens=True) == "ab a?"


def test_without_npm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(stories15m.models.DownloadError, match=r"npm.*Node\.js"):
        stories15m.burgess(tmp_path / "cache")
