# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from tiny_causal_lms import VOCAB, tiny_model

from flashsparse_plugin.evaluation.speed import GraphedStep, Step, rates


@pytest.mark.parametrize("name", ["llama", "mistral", "opt", "gpt_neox"])
def test_steps_in_place_write_what_the_model_generates(name):
    """What a CUDA graph would repeat, also a second time after the same prompt."""
    model = tiny_model(name)
    assert model._can_compile_fullgraph
    ids = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
    expected = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)[:, 7:]
    step = Step(model, ids, 5)
    place = step.token.data_ptr()
    for _ in range(2):
        step.start()
        found = [step.token.clone()]
        for _ in range(5):
            step()
            found.append(step.token.clone())
        assert torch.equal(torch.cat(found, 1), expected)
    assert step.token.data_ptr() == place


def test_a_model_whose_cache_moves_has_no_graph():
    model = tiny_model("llama")
    type(model)._can_compile_fullgraph, before = False, type(model)._can_compile_fullgraph
    try:
        assert GraphedStep.of(model, torch.ones(1, 4, dtype=torch.int64), 3) is None
    finally:
        type(model)._can_compile_fullgraph = before


def test_on_a_cpu_nothing_is_captured():
    found = rates(tiny_model("llama"), torch.ones(1, 8, dtype=torch.int64), 4, 3, 1)
    assert found.prefill > 0 and found.decode > 0 and not found.graphed
