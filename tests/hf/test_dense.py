# SPDX-License-Identifier: Apache-2.0
"""Layers that stay dense go by their dataflow; a GPU is pretended."""

import pytest
import tiny
import torch
from torch import nn

from flashsparse_plugin.dataflow import DenseLinear
from flashsparse_plugin.integrations.hf import dense
from flashsparse_plugin.integrations.hf.dense import DispatchedLinear

FLOW = DenseLinear(2, 16)


@pytest.fixture
def pretended_gpu(monkeypatch):
    monkeypatch.setattr(dense, "dense_linear", lambda weight: FLOW)


def kinds(model):
    return {name: type(m) for name, m in model.named_modules() if isinstance(m, nn.Linear)}


@pytest.mark.parametrize("architecture", ["llama", "llama-tied"])
def test_the_head_goes_by_its_dataflow(checkpoints, architecture, pretended_gpu, monkeypatch):
    path = checkpoints(architecture).packed
    model = tiny.load(path, torch.bfloat16)
    assert kinds(model) == {"lm_head": DispatchedLinear}
    assert model.lm_head.flow is FLOW and model.lm_head.bias is None
    with monkeypatch.context() as patch:
        patch.setattr(dense, "dense_linear", lambda weight: None)
        plain = tiny.load(path, torch.bfloat16)
    assert kinds(plain) == {"lm_head": nn.Linear}
    assert torch.equal(tiny.logits(model), tiny.logits(plain))
    tied = model.get_input_embeddings().weight is model.lm_head.weight
    assert tied == (architecture == "llama-tied")
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_moved_cast_or_under_autocast_it_is_torchs_own(checkpoints, pretended_gpu, monkeypatch):
    head = tiny.load(checkpoints("llama").packed, torch.bfloat16).lm_head
    x = torch.randn(3, head.in_features)
    calls = []
    monkeypatch.setattr(DenseLinear, "__call__", lambda *a: calls.append(a) or a[1])
    head(x.bfloat16())
    assert len(calls) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert head(x).dtype == torch.bfloat16
    head.to(torch.float64)(x.double())
    assert len(calls) == 1


def test_it_is_one_graph():
    torch._dynamo.reset()
    layer = DispatchedLinear.of(nn.Linear(8, 16, dtype=torch.bfloat16), FLOW)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (2, 5, 20):
        x = torch.randn(tokens, 8).bfloat16()
        assert torch.equal(compiled(x), layer(x))
