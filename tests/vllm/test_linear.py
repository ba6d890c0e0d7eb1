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
