# SPDX-License-Identifier: Apache-2.0
"""Norms and rotary embeddings of transformers that run by our kernels. On a CPU only if forced."""

import collections
import copy
import inspect
import pickle

import pytest
import tiny
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import flashsparse_plugin as fs
from flashsparse_plugin import decode_kernels
from flashsparse_plugin.decode_kernels import use_decode_kernels

# Norms and rotary embeddings of two layers of each that are ours.
CALLS = {
    "llama": (5, 2),
    "qwen3": (9, 2),  # of heads, too
    "gpt-neox": (0, 0),  # LayerNorm; 4 elements of a head are rotated, which is no vector of ours
    "phi3": (5, 2),  # views of one product
    "gemma2": (9, 2),  # a weight plus one
    "glm4": (9, 2),  # neighbours, of cosines in halves
    "opt": (0, 0),
}


class Calls(TorchDispatchMode):
    """Counts ops by name."""

    def __init__(self):
        super().__init__()
        self.times = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.times[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def on_cpu(monkeypatch):
    """Has a CPU take our ops, which there are torch's own, and transformers as it was after."""
    monkeypatch.setattr(decode_kernels, "_DEVICES", {"cpu"})
    for owner, name in ((modeling_llama, "apply_rotary_pos_emb"), (LlamaRMSNorm, "forward")):
        monkeypatch.setattr(owner, name, inspect.unwrap(getattr(owner, name)))


def counted(call, *args, **kwargs):
    with torch.no_grad(), Calls() as calls:
        found = call(*args, **kwargs)
    return found, calls.times


@pytest.mark.oldest_transformers
@pytest.mark.parametrize("architecture", CALLS)
def test_bits_are_those_of_transformers(on_cpu, monkeypatch, architecture):
    monkeypatch.setitem(tiny._COMMON, "head_dim", 32)  # of which GLM rotates a half
    model = tiny.build(architecture)
    with torch.no_grad():
        expected, tokens = model(**tiny.prompt()).logits, tiny.generate(model)
    use_decode_kernels(model)
    found, times = counted(model, **tiny.prompt())
    assert (times["rms_norm"], times["rope"]) == CALLS[architecture]
    assert torch.equal(found.logits, expected)
    assert torch.equal(tiny.generate(model), tokens)


def test_a_decode_step_launches_fewer_than_half_of_the_kernels(on_cpu, monkeypatch):
    views = {"view", "transpose", "slice", "unsqueeze", "expand", "alias", "_unsafe_view", "t"}
    views |= {"detach", "split", "as_strided"}

    def launches(model):
        with torch.no_grad():
            past = model(**tiny.prompt()).past_key_values
        next_token = torch.ones(2, 1, dtype=torch.long)
        mask = torch.ones(2, 10, dtype=torch.long)
        _, times = counted(model, next_token, attention_mask=mask, past_key_values=past)
        return sum(n for name, n in times.items() if name not in views)

    def of_a_layer(prepare):
        monkeypatch.setitem(tiny._COMMON, "num_hidden_layers", 3)
        three = prepare(tiny.build("llama"))
        monkeypatch.setitem(tiny._COMMON, "num_hidden_layers", 2)
        return launches(three) - launches(prepare(tiny.build("llama")))

    def ours(model):
        use_decode_kernels(model)
        return model

    theirs = of_a_layer(lambda model: model)
    assert (theirs, of_a_layer(ours)) == (40, 17)


def test_a_packed_model_has_them_unless_it_is_told_otherwise(on_cpu, llama, tmp_path):
    ids = tiny.prompt()
    own, times = counted(tiny.load(llama.packed, torch.bfloat16), **ids)
    assert (times["rms_norm"], times["rope"]) == CALLS["llama"]
    config = fs.FlashSparseConfig(decode_kernels="default")
    model = tiny.load(llama.packed, torch.bfloat16, quantization_config=config)
    theirs, times = counted(model, **ids)
    assert times["rms_norm"] == 0
    assert torch.equal(own.logits, theirs.logits)
    model.save_pretrained(tmp_path)
    assert "decode_kernels" not in tiny.quantization_config(tmp_path)


def test_what_our_kernels_do_not_take_runs_as_before(on_cpu, llama):
    """Gradients, other dtypes, rows that are no multiple of 16 bytes."""
    model = tiny.load(llama.packed, torch.bfloat16)
    with Calls() as calls:
        model(**tiny.prompt())
    assert calls.times["rms_norm"] == calls.times["rope"] == 0
    norm = model.model.norm
    x = torch.randn(3, 64).bfloat16()
    for other in (x.float(), torch.randn(3, 72).bfloat16()[:, 8:], x[0], x[None, None, None]):
        expected = LlamaRMSNorm.forward.__wrapped__(norm, other)
        found, times = counted(norm, other)
        assert torch.equal(found, expected)
        assert times["rms_norm"] == (other.dim() != 2)
    assert counted(norm, hidden_states=x)[1]["rms_norm"] == 0
    _, times = counted(tiny.load(llama.packed), **tiny.prompt())  # in float32
    assert times["rms_norm"] == times["rope"] == 0


def test_cosines_that_no_pair_shares_are_left_to_transformers(on_cpu):
    use_decode_kernels(tiny.build("llama"))
    random = torch.Generator().manual_seed(0)
    heads = [torch.randn(2, n, 3, 16, generator=random).bfloat16() for n in (4, 2)]
    table = torch.randn(2, 2, 3, 16, generator=random).bfloat16()
    found, times = counted(modeling_llama.apply_rotary_pos_emb, *heads, *table)
    expected = modeling_llama.apply_rotary_pos_emb.__wrapped__(*heads, *table)
    assert times["rope"] == 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("tables", [1, 2])
def test_tables_of_one_sequence_or_of_each(on_cpu, sequences, tables):
    if tables > sequences:
        pytest.skip("a table of more sequences than there are")
    use_decode_kernels(tiny.build("llama"))
    random = torch.Generator().manual_seed(0)
    angles = torch.randn(tables, 3, 8, generator=random)
    table = [f(torch.cat([angles, angles], -1)).bfloat16() for f in (torch.cos, torch.sin)]
    for tokens in (3, 3):  # the second has what the first one left
        heads = [
            torch.randn(sequences, tokens, n, 16, generator=random).bfloat16().transpose(1, 2)
            for n in (4, 2)
        ]
        found, times = counted(modeling_llama.apply_rotary_pos_emb, *heads, *table)
        assert times["rope"] == 1
        for one, other in zip(
            found, modeling_llama.apply_rotary_pos_emb.__wrapped__(*heads, *table), strict=True
        ):
            assert torch.equal(one, other) and one.stride() == other.stride()


class Norm(nn.Module):
    """Norms that look like ours."""

    def __init__(self, arithmetic, **more):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
        self.eps, self.arithmetic = 1e-6, arithmetic
        vars(self).update(more)

    def forward(self, x):
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.arithmetic == "one rounding":
            return (wide * inverse * self.weight.float()).to(x.dtype)
        if self.arithmetic == "centred":
            wide = wide - wide.mean(-1, keepdim=True)
        if self.arithmetic == "no epsilon":
            inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))
        if self.arithmetic == "another result":
            return x, x
        if self.arithmetic == "more state":
            return x * self.state
        return self.weight * (wide * inverse).to(x.dtype)


@pytest.mark.parametrize(
    "arithmetic",
    ["ours", "one rounding", "centred", "no epsilon", "another result", "more state"],
)
def test_a_norm_is_known_by_its_bits(on_cpu, arithmetic):
    model = nn.Sequential(Norm(arithmetic))
    use_decode_kernels(model)
    assert ("_decode_kernel" in vars(model[0])) == (arithmetic == "ours")


def test_copies_and_hooks(on_cpu, llama):
    from accelerate.hooks import ModelHook, add_hook_to_module

    model = tiny.build("llama")
    add_hook_to_module(model.model.norm, ModelHook())
    use_decode_kernels(model)
    expected, times = counted(model, **tiny.prompt())
    assert times["rms_norm"] == 5
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # of which a copy's method must know nothing
    found, times = counted(twin, **tiny.prompt())
    assert times["rms_norm"] == 5 and torch.equal(found.logits, expected.logits)
    plain = tiny.build("llama")
    use_decode_kernels(plain)
    read = pickle.loads(pickle.dumps(plain))
    found, times = counted(read, **tiny.prompt())
    assert times["rms_norm"] == 5 and torch.equal(found.logits, expected.logits)
    assert counted(tiny.build("llama"), **tiny.prompt())[1]["rms_norm"] == 0


def test_a_replica_of_data_parallel_has_weights_of_its_own(on_cpu):
    model = tiny.build("llama")
    use_decode_kernels(model)
    replica = model.model.norm._replicate_for_data_parallel()
    replica.weight = torch.full((64,), 3.0).bfloat16()  # no parameter, as there
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    found, times = counted(replica, x)
    assert times["rms_norm"] == 1
    assert torch.equal(found, LlamaRMSNorm.forward.__wrapped__(replica, x))
