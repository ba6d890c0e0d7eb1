# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="unified_max"` generates what sdpa does, on real weights."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, LlamaConfig

PROMPTS = ("Once upon a time, in a small village by the sea, there lived", "The capital of France")
NAME = "unified_max"


class Counted(TorchDispatchMode):
    """How often our op ran."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function.name() == "flashsparse::unified_max_decode"
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def smollm2(smollm2_dir):
    """By attention, and the tokenizer, which pads on the left."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    load = AutoModelForCausalLM.from_pretrained
    models = {
        name: load(smollm2_dir, dtype=torch.float32, attn_implementation=name)
        for name in ("sdpa", NAME)
    }
    return models, tokenizer


def generated(model, given, **options):
    with Counted() as counted:
        tokens = model.generate(**given, max_new_tokens=16, do_sample=False, **options)
    return tokens.tolist(), counted.calls


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["", "static"])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "left-padded"])
def test_the_same_text_as_sdpa(smollm2, prompts, options):
    models, tokenizer = smollm2
    given = tokenizer(list(prompts), return_tensors="pt", padding=True)
    if options:
        options = options | {"disable_compile": True}
    expected, none = generated(models["sdpa"], given, **options)
    tokens, calls = generated(models[NAME], given, **options)
    assert tokens == expected
    # Each layer at each step but the prompt's.
    steps = len(tokens[0]) - given["input_ids"].shape[1] - 1
    assert (none, calls) == (0, 30 * steps) and steps > 0


def test_compiled(smollm2):
    """A step with a static cache is one graph, and gives the same logits."""
    models, tokenizer = smollm2
    given = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    logits = []
    for step in (models["sdpa"].forward, torch.compile(models[NAME].forward, fullgraph=True,
                                                       backend="aot_eager")):  # fmt: skip
        model = models["sdpa"] if not logits else models[NAME]
        with torch.no_grad():
            out = model(**given, use_cache=True)
            mask = torch.nn.functional.pad(given["attention_mask"], (0, 1), value=1)
            ids = out.logits[:, -1:].argmax(-1)
            logits.append(
                step(input_ids=ids, attention_mask=mask, past_key_values=out.past_key_values).logits
            )
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-3)


def test_a_head_size_without_a_kernel_goes_through_sdpa():
    config = LlamaConfig(
        vocab_size=64, hidden_size=96, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    given = {"input_ids": torch.arange(6)[None], "attention_mask": torch.ones(1, 6).long()}
    tokens, calls = generated(model, given)
    model.set_attn_implementation("sdpa")
    assert calls == 0 and tokens == generated(model, given)[0]


def test_capped_scores_are_refused():
    """sdpa would leave the cap out for the prompt, without a word."""
    config = Gemma2Config(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=64,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    with pytest.raises(ValueError, match='softcap 50.0.*attn_implementation="eager"'):
        model(torch.arange(6)[None])
