# SPDX-License-Identifier: Apache-2.0
"""Shapes of a model by its config.json: those of plain decoders without transformers."""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashsparse_plugin.checkpoint.read.shapes import built_shapes
from flashsparse_plugin.served import plain_decoder

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@st.composite
def configs(draw):
    family = draw(st.sampled_from(sorted(FAMILIES)))
    heads = draw(st.sampled_from([2, 4, 8]))
    config = {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "hidden_size": heads * draw(st.sampled_from([16, 64])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, 2])),
        "intermediate_size": draw(st.integers(1, 300)),
        "vocab_size": draw(st.integers(1000, 2000)),
    }
    if family == "qwen3" or draw(st.booleans()):
        config["head_dim"] = draw(st.sampled_from([8, 32]))
    if draw(st.booleans()):
        config["tie_word_embeddings"] = draw(st.booleans())
    return config


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_plain_decoders_have_the_shapes_that_transformers_gives_them(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert plain_decoder(config) == built_shapes(tmp_path)


LLAMA = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64},
    **{"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 100},
}


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen3_moe"},
        {"model_type": ["llama"]},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": None},
        {"num_hidden_layers": 10**6},
        {"hidden_size": 0},
        {"hidden_size": True},
        {"hidden_size": 65},  # no head dimension follows from it
        {"intermediate_size": "96"},
        {"tie_word_embeddings": "no"},
        {"head_dim": -1},
        {"attention_bias": True},
    ],
)
def test_the_rest_is_left_to_transformers(change):
    assert plain_decoder(LLAMA) is not None
    assert plain_decoder(LLAMA | change) is None


def test_advise_does_not_wait_for_transformers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = (
        "import sys; from flashsparse_plugin.cli import app; "
        f"app(['advise', {str(tmp_path)!r}], standalone_mode=False); "
        "sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
