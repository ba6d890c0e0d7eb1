# SPDX-License-Identifier: Apache-2.0
"""generate: with a static cache, and compiled into one graph."""

import pytest
import tiny
import torch
from transformers import CompileConfig


@pytest.mark.oldest_transformers
def test_static_cache(llama, wanted):
    model = tiny.load(llama.packed)
    assert torch.equal(tiny.generate(model, cache_implementation="static"), wanted)


@pytest.mark.slow
def test_compiled_with_a_static_cache(llama, wanted):
    model = tiny.load(llama.packed)
    assert model.hf_quantizer.is_compileable
    # What inductor makes of our op: tests/test_ops.py, and of whole models tests/vllm.
    compile_config = CompileConfig(fullgraph=True, mode="default", backend="aot_eager")
    compile_config._compile_all_devices = True  # transformers leaves the CPU out by default
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    tokens = tiny.generate(model, cache_implementation="static", compile_config=compile_config)
    assert torch.equal(tokens, wanted)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
