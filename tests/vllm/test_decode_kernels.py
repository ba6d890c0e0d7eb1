# SPDX-License-Identifier: Apache-2.0
"""Layers of vLLM that are exchanged for ours. What they gain, a GPU must say."""

from types import SimpleNamespace

import pytest
import torch
import vllm_checkpoints as checkpoints
from vllm_checkpoints import MAX_TOKENS, PROMPTS

EARLY = {"additional_config": {"flashsparse": {"decode_kernels": "early"}}}
MODELS = ["llama", "qwen3", "glm4", "gemma2"]  # norms of heads; interleaved pairs; weights plus one


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_offline):
    folder = tmp_path_factory.mktemp("decode_kernels")
    jobs = {}
    for name in MODELS:
        _, packed = checkpoints.make(name, folder)
        job = {"model": str(packed), "prompts": PROMPTS, "max_tokens": MAX_TOKENS}
        compiled = {"enforce_eager": False} if name == "llama" else {}
        jobs[name] = job | {"options": {}}
        jobs[f"{name} ours"] = job | {"options": EARLY | compiled, "piecewise": bool(compiled)}
    return run_offline(jobs)


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_of_vllms_layers(results, model):
    ours, theirs = results[f"{model} ours"], results[model]
    assert "error" not in ours, ours["error"]
    assert ours["tokens"] == theirs["tokens"]
    for result, times in ((ours, 1), (theirs, 0)):
        assert sum(line.startswith("decode kernels: ") for line in result["log"]) == times


# ---- single layers ------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """Makes a layer of vLLM in a model with a setting, and calls it."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import custom_op

    from flashsparse_plugin.integrations.vllm.decode_kernels import use_decode_kernels

    monkeypatch.setattr(custom_op, "op_registry_oot", dict(custom_op.op_registry_oot))

    def make(kernels, layer, *arguments, is_packed=True, **options):
        own = {} if kernels is None else {"decode_kernels": kernels}
        config = VllmConfig(additional_config={"flashsparse": own})
        torch.manual_seed(0)
        with set_current_vllm_config(config):
            use_decode_kernels(config, is_packed)
            module = layer(*arguments, **options)
        weight = getattr(module, "weight", None)
        if weight is not None:
            weight.data.copy_(torch.randn_like(weight))
        return module

    return make


def layers():
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

    bfloat16 = torch.bfloat16
    x, residual = torch.randn(2, 5, 64).to(bfloat16)
    wide = torch.randn(5, 320).to(bfloat16)
    query, key, _ = wide.split([192, 64, 64], -1)
    positions = torch.tensor([3, 0, 7, 9, 2])
    return {
        "norm": (lambda: RMSNorm(64, dtype=bfloat16), (x,)),
        "norm, residual": (lambda: RMSNorm(64, dtype=bfloat16), (x, residual)),
        "norm of heads": (lambda: RMSNorm(64, dtype=bfloat16), (query.view(5, 3, 64),)),
        "Gemma": (lambda: GemmaRMSNorm(64).to(bfloat16), (x, residual)),
        "SiLU": (SiluAndMul, (x,)),
        "GELU": (lambda: GeluAndMul("tanh"), (x,)),
        "rotary": (
            lambda: RotaryEmbedding(64, 32, 16, 10000, True, bfloat16),
            (positions, query, key),
        ),
        "interleaved": (
            lambda: Llama3RotaryEmbedding(64, 64, 16, 1e4, False, bfloat16, 8.0, 1.0, 4.0, 8192),
            (positions, query, key),
        ),
        # What our kernels lack.
        "exact GELU": (GeluAndMul, (x,)),
        "odd columns": (lambda: RMSNorm(60, dtype=bfloat16), (x[:, :60],)),
        "another dtype": (lambda: RMSNorm(64, dtype=torch.float32), (x,)),
        "a part of the variance": (lambda: RMSNorm(64, var_hidden_size=32, dtype=bfloat16), (x,)),
    }


NOT_OURS = {"exact GELU", "odd columns", "another dtype", "a part of the variance"}
LAYERS = ["norm", "norm, residual", "norm of heads", "Gemma", "SiLU", "GELU", "rotary"]
LAYERS += ["interleaved", *sorted(NOT_OURS)]


@pytest.mark.parametrize(
    ("kernels", "is_packed", "gpu", "is_ours"),
    [
        (None, True, 90, True),
        (None, False, 90, False),
        (None, True, 100, False),
        (None, True, None, False),
        ("default", True, 90, False),
        ("early", False, None, True),
    ],
)
def test_packed_models_on_hopper_have_them(made, monkeypatch, kernels, is_packed, gpu, is_ours):
    from flashsparse_plugin.integrations.vllm import decode_kernels

    platform = SimpleNamespace(is_device_capability=lambda asked: asked == gpu)
    monkeypatch.setattr(decode_kernels, "current_platform", platform)
    monkeypatch.setattr(decode_kernels, "STATUS", {"_C_cuda": SimpleNamespace(loaded=True)})
    module = made(kernels, layers()["SiLU"][0], is_packed=is_packed)
    assert isinstance(module, decode_kernels._Early) == is_ours


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_bits_of_vllms_own_in_torch(made, monkeypatch, name):
    from flashsparse_plugin.integrations.vllm import decode_kernels

    used = []

    class Ops:
        def __getattr__(self, op):
            used.append(op)
            return getattr(torch.ops.flashsparse, op)

    monkeypatch.setattr(decode_kernels, "ops", Ops())
    layer, arguments = layers()[name]
    results = []
    for kernels in ("early", "default"):
        module = made(kernels, layer)
        assert isinstance(module, decode_kernels._Early) == (kernels == "early")
        copies = [a.clone() if a.is_contiguous() else a.clone().copy_(a) for a in arguments]
        call = module if kernels == "early" else module.forward_native
        with torch.no_grad():
            found = call(*copies)
        results.append(found if isinstance(found, tuple) else (found,))
    assert len(used) == (name not in NOT_OURS)
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_a_layer_of_another_plugin_stays(made, caplog, monkeypatch):
    from vllm.model_executor import custom_op
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    from flashsparse_plugin.integrations.vllm import decode_kernels

    monkeypatch.setattr(decode_kernels.logger, "propagate", True)
    caplog.set_level("INFO", "vllm.flashsparse")
    other = type("Other", (RMSNorm,), {})
    custom_op.op_registry_oot["RMSNorm"] = other
    assert type(made("early", RMSNorm, 64)) is other
    assert isinstance(made("early", SiluAndMul), decode_kernels._Early)
    (told,) = (r.getMessage() for r in caplog.records if r.name == decode_kernels.logger.name)
    assert "but for RMSNorm, which another plugin has" in told
    assert type(made("default", SiluAndMul)) is SiluAndMul
    assert custom_op.op_registry_oot["RMSNorm"] is other


def test_the_setting_has_two_values():
    from flashsparse_plugin.integrations.vllm.settings import SettingsError, fold, settings_of

    with pytest.raises(SettingsError, match='must be "early" or "default", not True'):
        settings_of({"flashsparse": {"decode_kernels": True}})
    # It says nothing of weights: a dense model stays dense.
    assert fold(None, EARLY["additional_config"], None)[0] is None
