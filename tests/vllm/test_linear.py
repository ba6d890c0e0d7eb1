# SPDX-License-Identifier: Apache-2.0
"""One packed layer, without an engine: up to how many tokens it is multiplied as it is."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import flashsparse_plugin as fs
from flashsparse_plugin.plan import Plan

PLAN = Plan.of([(5, "sparse"), (None, "library")], "table", "so")

LOAD = SimpleNamespace(load_format="auto")


@pytest.fixture
def held(monkeypatch):
    """The method of a layer that holds a weight where a table says so, and its configuration."""
    from flashsparse_plugin.integrations.vllm import linear
    from flashsparse_plugin.integrations.vllm.summary import Summary

    def hold(found):
        monkeypatch.setattr(linear, "plan_of", lambda packed: found)
        method = linear.SparseLinearMethod(fs.FlashSparseConfig(), ["name"], "name", Summary())
        config = SimpleNamespace(additional_config={}, load_config=LOAD)
        method._hold(nn.Module(), fs.pack(torch.ones(8, 8).half()).prepare("cpu"), config)
        return method, config.additional_config

    return hold


def test_a_table_decides_and_the_compile_cache_knows(held):
    method, counted = held(PLAN)
    assert method.plan == PLAN
    assert counted["flashsparse_dataflow"] == {"name": [[5, "sparse"], [None, "library"]]}


def test_without_one_the_op_is_left_to_itself(held):
    method, counted = held(None)
    assert method.plan is None and "flashsparse_dataflow" not in counted


def test_results_that_may_not_depend_on_the_batch_are_refused(monkeypatch):
    from flashsparse_plugin.integrations.vllm import quantization
    from flashsparse_plugin.integrations.vllm.settings import SettingsError

    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    engine = SimpleNamespace(
        additional_config={"flashsparse": {"method": "tiled_csl"}}, load_config=LOAD
    )
    with pytest.raises(SettingsError, match="VLLM_BATCH_INVARIANT is set.*--sparse-method none"):
        quantization.FlashSparseQuantization().settle(engine)
    engine.additional_config["flashsparse"]["method"] = "none"
    packed = quantization.FlashSparseQuantization(fs.FlashSparseConfig())
    packed.settle(engine)
    assert packed.config.dequantize


def test_amx_is_asked_for_where_all_layers_may_be_packed(monkeypatch):
    """vLLM's attention on a CPU with AMX would be the first to use it, and end the process."""
    from flashsparse_plugin.integrations.vllm import quantization

    asked = []
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(True))
    engine = SimpleNamespace(additional_config={}, load_config=LOAD)
    quantization.FlashSparseQuantization(fs.FlashSparseConfig()).settle(engine)
    assert asked == [True]


def test_a_worker_notices_packed_tensors_that_no_configuration_names():
    """Of a model on the Hub, whose files the front end does not see."""
    from flashsparse_plugin.checkpoint import CheckpointError
    from flashsparse_plugin.integrations.vllm.unpacking import _none_packed

    dense, packed = [("a.weight", torch.ones(1))], [("b.tile_offsets", torch.ones(1))]
    read = _none_packed(iter(dense + packed), Path("someone/model"))
    assert next(read) == dense[0]
    with pytest.raises(CheckpointError, match=r"layer 'b' of someone/model is packed by flash"):
        next(read)


@pytest.mark.parametrize("is_packed", [True, False])
def test_auto_asks_the_weight_and_the_compile_cache_knows(monkeypatch, is_packed):
    from flashsparse_plugin.dataflow.choice import Choice
    from flashsparse_plugin.integrations.vllm import linear
    from flashsparse_plugin.integrations.vllm.summary import Summary

    def choose(pattern, dtype, target):
        assert (pattern.density, target.gpu, target.batch) == (0.5, None, 4)
        return Choice(fs.get_format("tiled_csl").scheme(dtype) if is_packed else None, "so")

    monkeypatch.setattr(linear, "choose", choose)
    config = fs.FlashSparseConfig(format="auto", batch=4)
    method = linear.SparseLinearMethod(config, ["q", "k"], "layers.0.qk", Summary())
    method.loader = SimpleNamespace(scheme=config.scheme_of("q", dtypes=[torch.float16]))
    engine = SimpleNamespace(additional_config={})
    weight = torch.eye(2).half()
    found = method._packed(weight, torch.device("cpu"), engine)
    assert (found is not None) == is_packed
    assert engine.additional_config["flashsparse_schemes"] == {
        "layers.0.qk": "tiled_csl" if is_packed else "dense"
    }
    assert method.summary.chosen[0][0] == "layers.*.qk"
    assert bool(method.summary.reasons) != is_packed


@pytest.mark.parametrize("name", ["tiled_csl", "tiled_bitmap"])
def test_a_stream_is_padded_by_whole_lines(name):
    """As a GPU holds it; a stream that is a table of lines grows downwards and not sideways."""
    from flashsparse_plugin.integrations.vllm.linear import _padded

    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(256, 1024, generator=generator)
    weight = (weight * (torch.rand(256, 1024, generator=generator) < 0.4)).half()
    packed = fs.pack(weight, name)
    stream, _ = packed.tensors.values()
    padded = _padded(packed)["weight_packed"]
    assert padded.shape[1:] == stream.shape[1:] and len(padded) > len(stream)
    assert padded.numel() - stream.numel() < 0.011 * weight.numel()
    assert padded[: len(stream)].equal(stream)


@pytest.mark.parametrize("name", fs.format_names())
def test_every_form_of_a_gpu_is_held(name):
    """Whatever of its sizes the weight decides; the compile cache knows these."""
    from flashsparse_plugin.integrations.vllm import linear
    from flashsparse_plugin.integrations.vllm.caching import LENGTHS
    from flashsparse_plugin.integrations.vllm.summary import Summary

    format = fs.get_format(name)
    patterns = ("nm_vector", "exact_nm")
    scheme = format.scheme(torch.bfloat16, {"n": 2, "m": 4} if name in patterns else None)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(256, 512, generator=generator, dtype=torch.bfloat16)
    weight[::7, ::5] = 2.0**-100  # exceptions of lossless
    form = format.runtime(scheme, torch.device("cuda"))
    packed = format.pack(format.conform(weight, scheme), scheme).transcode(form)
    layer, engine = torch.nn.Module(), SimpleNamespace(additional_config={})
    method = linear.SparseLinearMethod(fs.FlashSparseConfig(), ["q"], "q", Summary())
    method._hold(layer, packed, engine)
    lengths = engine.additional_config.get(LENGTHS, {})
    for own, spec in form.format.tensors(form, packed.shape).items():
        held, tensor = getattr(layer, own), packed.tensors[own]
        assert held[: len(tensor)].equal(tensor)
        assert held[len(tensor) :].count_nonzero() == 0
        assert (f"q.{own}" in lengths) == (None in spec.shape)
        assert lengths.get(f"q.{own}", 0) in (0, *held.shape)


def test_exact_weights_multiply_with_room_in_their_list():
    """As a GPU has them: kernels go by the offsets, and so does what a CPU has of their ops."""
    from flashsparse_plugin.integrations.vllm.linear import _padded

    stored = fs.get_format("lossless")
    form = stored.runtime(stored.scheme(torch.bfloat16), torch.device("cuda"))
    weight = torch.randn(300, 520, dtype=torch.bfloat16)
    weight[:16, :40] = 2.0**-100
    packed = form.format.pack(weight, form)
    tensors = _padded(packed)
    assert len(tensors["listed"]) > int(tensors["listed_offsets"][-1]) > 0
    roomy = fs.PackedWeight(form, packed.shape, tensors).validate("q")
    x = torch.randn(3, 520, dtype=torch.bfloat16)
    assert roomy.linear(x).equal(packed.linear(x)) and roomy.unpack().equal(weight)


def test_routers_and_classification_heads_stay_dense():
    """vLLM's routers are linear layers, where those of transformers mostly are not."""
    from vllm.model_executor.layers.fused_moe import GateLinear
    from vllm.model_executor.layers.linear import ColumnParallelLinear, ReplicatedLinear

    from flashsparse_plugin.integrations.vllm.quantization import FlashSparseQuantization

    def role(name, kind=ReplicatedLinear, stored=None, packed=(), **settings):
        quantization = FlashSparseQuantization(stored)
        quantization.config = stored or fs.FlashSparseConfig(**settings)
        return quantization._role(kind.__new__(kind), name, {*packed})

    gate, own = "model.layers.0.mlp.gate", fs.FlashSparseConfig()
    assert role(gate) == "router"
    assert role("model.layers.0.ffn.classifier", GateLinear) == "router"
    assert role("score") == "output head"
    assert role("score", ignore=[]) is None
    assert role(gate, layers={gate: {"format": "tiled_csl"}}) is None
    # Of a packed checkpoint its tensors say what it is, where they are known.
    assert role(gate, stored=own) is None
    assert role(gate, stored=own, packed=["model.layers.1.self_attn.q_proj"]) == "router"
    assert role(gate, stored=own, packed=["language_model.layers.0.mlp.gate"]) is None
    assert role("score", stored=own, packed=["model.layers.1.self_attn.q_proj"]) is None
    assert role("model.layers.0.mlp.gate_up_proj", ColumnParallelLinear) is None
