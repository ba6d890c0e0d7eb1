# SPDX-License-Identifier: Apache-2.0
"""Where our decode attention is the default of a server, and that nothing else changes."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def default(monkeypatch):
    """The module, as on a Hopper GPU."""
    from flashsparse_plugin.integrations.vllm import attention, attention_default

    attention.install()
    monkeypatch.setattr(attention_default, "_is_hopper", lambda: True)
    return attention_default


def engine(**changes):
    fields = {
        "attention_backend": None, "attention_config": None, "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1, "speculative_config": None, "compilation_config": None,
    }  # fmt: skip
    return SimpleNamespace(**fields | changes)


def model(text=None, **changes):
    """Llama-3-8B, to vLLM."""
    text = {"num_attention_heads": 32, "num_hidden_layers": 1, "kv_heads": 8} | (text or {})
    config = SimpleNamespace(**text, to_dict=lambda: text)
    fields = {
        "hf_text_config": config, "hf_config": config, "dtype": torch.bfloat16,
        "runner_type": "generate", "get_total_num_kv_heads": lambda: text["kv_heads"],
        "get_head_size": lambda: 128, "get_sliding_window": lambda: None,
    }  # fmt: skip
    kinds = ("is_multimodal_model", "is_encoder_decoder", "use_mla", "is_hybrid")
    return SimpleNamespace(**fields | dict.fromkeys(kinds, False) | changes)


def chosen(default, arguments, model, said):
    default.logger.info = lambda text, *args: said.append(text % args)
    default.choose(arguments, model)
    return getattr(arguments.attention_backend, "name", arguments.attention_backend)


@pytest.fixture
def said(default, monkeypatch):
    monkeypatch.setattr(default, "logger", SimpleNamespace())
    return []


def test_ours_where_it_was_measured(default, said):
    arguments = engine()
    assert chosen(default, arguments, model(), said) == "CUSTOM"
    assert chosen(default, arguments, model(), said) == "CUSTOM"  # vLLM may make a config again
    (line,) = said
    assert "decode attention: FlashSparse's" in line and "--decode-attention default" in line
    assert chosen(default, engine(tensor_parallel_size=4), model(), said) == "CUSTOM"


@pytest.mark.parametrize(
    ("reason", "arguments", "changes"),
    [
        ("float16 was not timed", {}, {"dtype": torch.float16}),
        ("a cache of another dtype", {"kv_cache_dtype": "fp8"}, {}),
        ("a cache of another dtype", {}, {"hf_config": {"kv_cache_scheme": {"num_bits": 8}}}),
        ("heads of 64 elements", {}, {"get_head_size": lambda: 64}),
        ("sliding windows", {}, {"get_sliding_window": lambda: 4096}),
        ("capped scores", {}, {"text": {"attn_logit_softcapping": 50.0}}),
        ("sinks", {}, {"text": {"attention_sink": True}}),
        ("layers of other kinds", {}, {"text": {"layer_types": ["full_attention", "linear"]}}),
        ("1 kv heads of 4", {"tensor_parallel_size": 8}, {}),
        ("40 kv heads of 1", {}, {"text": {"num_attention_heads": 40, "kv_heads": 40}}),
        ("only models that generate text", {}, {"is_multimodal_model": True}),
        ("latent attention", {}, {"use_mla": True}),
        ("several tokens", {"speculative_config": {}}, {}),
        ("graphs", {"compilation_config": SimpleNamespace(cudagraph_mode="FULL")}, {}),
        ("unified_max.version", {}, {"text": {"unified_max": {"version": 9}}}),
        ("TypeError", {}, {"get_total_num_kv_heads": None}),  # of another release of vLLM
        ("it was asked for", {"attention_backend": "auto"}, {}),
    ],
)
def test_vllms_own_where_it_was_not(default, said, reason, arguments, changes):
    if isinstance(changes.get("hf_config"), dict):
        changes = {"hf_config": SimpleNamespace(quantization_config=changes["hf_config"])}
    arguments = engine(**arguments)
    for _ in range(2):
        assert chosen(default, arguments, model(**changes), said) is None
    assert "decode attention: vLLM's own (" in said[0] and reason in said[0]


def test_what_a_user_names_stays(default, said, monkeypatch):
    assert chosen(default, engine(attention_backend="FLASHINFER"), model(), said) == "FLASHINFER"
    for config in ({"backend": "TRITON_ATTN"}, {"backend_per_kind": {"full": 1}}):
        arguments = engine(attention_config=SimpleNamespace(**config))
        assert chosen(default, arguments, model(), said) is None
    monkeypatch.setattr(default, "_is_hopper", lambda: False)
    assert chosen(default, engine(), model(), said) is None
    assert said == []


def test_the_bounds_are_those_of_the_committed_tables(default):
    """Within them it was at most 1% slower anywhere, and there is such a table of both Hoppers."""
    for card in ("nvidia-h200", "nvidia-h100-80gb-hbm3"):
        lines = (RESULTS / card / "attention.csv").read_text().splitlines()
        timed = set()
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            heads, _, kv_heads, head_dim = (
                row["heads"].replace("/", " / ").replace(" x ", " ").split()
            )
            inside = int(kv_heads) in default.KV_HEADS and int(head_dim) == default.HEAD_DIM
            if row["fa3_us"] and inside:
                assert float(row["paged_us"]) <= 1.01 * float(row["fa3_us"]), row
                timed.add((int(heads) // int(kv_heads), int(kv_heads)))
        assert len(timed) >= 3 and max(group for group, _ in timed) <= default.MOST_OF_GROUP
