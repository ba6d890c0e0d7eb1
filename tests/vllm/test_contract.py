# SPDX-License-Identifier: Apache-2.0
"""What vLLM's layers need of every format, on one process and on each of two: all registered
formats and the toy of tests/toy_format.py. Layers are vLLM's own; their process group is not."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from toy_format import Toy, ToyRuntime
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.formats import all_formats, registry
from flashsparse_plugin.packed import FormatError, PackedWeight

SCHEMES = [s for f in (*all_formats(), Toy()) if f.on_disk for s in f.examples()]
SCHEMES = [s for s in SCHEMES if s.dtype == torch.bfloat16]
HEAD_SCHEME = fs.get_format("nm_vector").scheme(
    torch.bfloat16, {"n": 1, "m": 1, "vector_length": 128, "values": "int8"}
)
SCHEMES.append(HEAD_SCHEME)  # cut at any row: shards of vocabularies end where they like
HIDDEN, HEAD, VOCABULARY = 128, 32, 96
every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)
every_process = pytest.mark.parametrize(("rank", "processes"), [(0, 1), (0, 2), (1, 2)])


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    for format in (Toy(), ToyRuntime()):
        registry.register_format(format)


@pytest.fixture
def vllm(monkeypatch, toy):
    """Makes vLLM's layers as one of some processes has them: vllm(rank, processes)."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    from flashsparse_plugin.integrations.vllm import linear as ours

    def processes(rank, count):
        for module in (linear, vocab_parallel_embedding, parameter):
            for name, value in (("rank", rank), ("world_size", count)):
                full = f"get_tensor_model_parallel_{name}"
                monkeypatch.setattr(module, full, lambda value=value: value)
        return linear, vocab_parallel_embedding

    load = SimpleNamespace(load_format="auto")
    engine = SimpleNamespace(additional_config={}, load_config=load)
    monkeypatch.setattr(ours, "get_current_vllm_config", lambda: engine)
    with set_current_vllm_config(VllmConfig()):
        yield processes


LAYERS = {
    "qkv_proj": {"q": (128, HIDDEN), "k": (64, HIDDEN), "v": (64, HIDDEN)},
    "gate_up_proj": {0: (192, HIDDEN), 1: (192, HIDDEN)},
    "up_proj": {None: (384, HIDDEN)},
    "down_proj": {None: (HIDDEN, 256)},
    "lm_head": {None: (VOCABULARY, HIDDEN)},
}


def make(modules, kind, method):
    """One of vLLM's layers, whose weights `method` creates, or vLLM itself where that is None."""
    from flashsparse_plugin.integrations.vllm.quantization import FlashSparseQuantization

    linear, embedding = modules
    config = None
    if method is not None:
        config = FlashSparseQuantization(method.config)
        config.get_quant_method = lambda layer, prefix: method
    common = {"quant_config": config, "prefix": kind, "params_dtype": torch.bfloat16}
    if kind == "qkv_proj":
        return linear.QKVParallelLinear(HIDDEN, HEAD, 4, 2, bias=False, **common)
    if kind == "gate_up_proj":
        return linear.MergedColumnParallelLinear(HIDDEN, [192, 192], bias=False, **common)
    if kind == "up_proj":
        return linear.ColumnParallelLinear(HIDDEN, 384, bias=False, **common)
    if kind == "down_proj":
        return linear.RowParallelLinear(256, HIDDEN, bias=False, reduce_results=False, **common)
    return embedding.ParallelLMHead(VOCABULARY, HIDDEN, **common)


def shards(kind, scheme):
    return {
        shard: scheme.format.conform(
            sparse_weight(*shape, 0.3, scheme.dtype, seed), scheme
        ).contiguous()
        for seed, (shard, shape) in enumerate(LAYERS[kind].items())
    }


def load(layer, name, shard, tensor):
    parameter = getattr(layer, name)
    parameter.weight_loader(parameter, tensor, *([] if shard is None else [shard]))


def dense_part(modules, kind, weights):
    """What vLLM itself makes of dense weights: this process's part of the layer."""
    layer = make(modules, kind, None)
    for shard, weight in weights.items():
        load(layer, "weight", shard, weight)
    return layer.weight.data


def method_of(scheme, **settings):
    from flashsparse_plugin.integrations.vllm.linear import SparseLinearMethod
    from flashsparse_plugin.integrations.vllm.summary import Summary

    config = fs.FlashSparseConfig(
        format=scheme.format.name, options=scheme.values, dtype="bfloat16", **settings
    )
    return SparseLinearMethod(config, ["name"], "model.name", Summary())


def held(method, layer):
    tensors = {name: getattr(layer, name).data for name in method.tensor_names}
    return PackedWeight(method.held, method.shape, tensors).unpack()


def can_be_cut(scheme, kind, processes):
    grain, cut_by_columns = scheme.format.grain(scheme)[1], kind == "down_proj" and processes > 1
    return not cut_by_columns or (grain is not None and 128 % grain == 0)


@every_scheme
@every_process
@pytest.mark.parametrize("kind", LAYERS)
def test_packed_shards_become_this_process_s_part(vllm, scheme, rank, processes, kind):
    modules = vllm(rank, processes)
    weights, method = shards(kind, scheme), method_of(scheme)
    layer = make(modules, kind, method)

    def fill():
        for shard, weight in weights.items():
            for name, tensor in scheme.format.pack(weight, scheme).tensors.items():
                load(layer, name, shard, tensor)

    if not can_be_cut(scheme, kind, processes):
        with pytest.raises(FormatError, match=r"'model\.name' \[128, 256\]: .* cannot be cut at col"
                           r".*--tensor-parallel-size.*--ignore model\.name"):  # fmt: skip
            fill()
        return
    fill()
    method.process_weights_after_loading(layer)
    assert torch.equal(held(method, layer), dense_part(modules, kind, weights))
    assert method.held == scheme.format.runtime(scheme, torch.device("cpu"))
    x = torch.randn(3, method.shape[1])
    seen = scheme.format.round_activations(x, scheme).float()
    expected = seen @ dense_part(modules, kind, weights).float().T
    torch.testing.assert_close(method.apply(layer, x), expected, rtol=1e-4, atol=1e-4)


@every_scheme
@every_process
def test_dense_shards_are_packed_when_all_are_there(vllm, scheme, rank, processes):
    modules = vllm(rank, processes)
    for kind in ("qkv_proj", "up_proj"):
        weights, method = shards(kind, scheme), method_of(scheme)
        layer = make(modules, kind, method)
        for shard, weight in weights.items():
            load(layer, "weight", shard, weight)
        method.process_weights_after_loading(layer)
        assert torch.equal(held(method, layer), dense_part(modules, kind, weights))
        assert not method.summary.rounded


@every_scheme
def test_a_value_too_large_is_refused_and_not_made_infinite(vllm, scheme):
    modules = vllm(0, 1)
    layer = make(modules, "up_proj", method_of(scheme))
    weight = torch.zeros(384, HIDDEN, dtype=torch.float32)
    weight[:] = torch.finfo(torch.float32).max
    rule = "too large for bfloat16" if scheme.format.rounds else "rounds nothing"
    with pytest.raises(FormatError, match=rf"model\.name\.weight.*{rule}"):
        load(layer, "weight", None, weight)


def noted(calls, inner, *arguments):
    calls.append(inner)
    return inner(*arguments)


def test_a_whole_packed_layer_is_neither_unpacked_nor_packed_again(vllm, monkeypatch):
    csl = fs.get_format("tiled_csl")
    scheme = csl.scheme(torch.bfloat16)
    modules = vllm(0, 1)
    for kind in ("up_proj", "gate_up_proj", "qkv_proj"):
        packed = {s: csl.pack(w, scheme) for s, w in shards(kind, scheme).items()}
        whole = all(weight.shape[0] % 128 == 0 for weight in list(packed.values())[:-1])
        method = method_of(scheme)
        layer = make(modules, kind, method)
        calls = []
        with monkeypatch.context() as patch:
            for name in ("unpack", "pack"):
                inner = getattr(type(csl), name)
                note = partial(noted, calls, inner)
                patch.setattr(type(csl), name, lambda *a, note=note: note(*a))
            for shard, weight in packed.items():
                for name, tensor in weight.tensors.items():
                    load(layer, name, shard, tensor)
        assert method.held is not None and bool(calls) != whole, kind


def test_parts_of_a_merged_layer_have_one_scheme(monkeypatch, toy):
    """A configuration may give q and k different options; then they cannot be one layer."""
    from flashsparse_plugin.integrations.vllm import quantization
    from flashsparse_plugin.integrations.vllm.settings import SettingsError

    layers = {f"a.{n}_proj": {"format": "toy", "options": {"group": 1}} for n in "qkv"}
    engine = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    monkeypatch.setattr(quantization, "get_current_vllm_config", lambda: engine)

    def packed_as(layers):
        stored = fs.FlashSparseConfig(dtype="bfloat16", layers=layers)
        method = quantization.FlashSparseQuantization(stored)
        method.config, method.packed_modules_mapping = (
            stored,
            {"qkv": ["q_proj", "k_proj", "v_proj"]},
        )
        return method._packed_as("a.qkv", is_head=False)

    assert packed_as(layers) == (["a.q_proj", "a.k_proj", "a.v_proj"], "")
    layers["a.k_proj"] = {"format": "toy", "options": {"group": 2}}
    with pytest.raises(SettingsError, match=r"'a\.qkv' merges.*k_proj: toy\(group=2.*bfloat16"):
        packed_as(layers)
