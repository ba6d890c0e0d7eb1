# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="unified_max"` generates what sdpa does, on real weights."""

import gc
import shutil

import pytest
import tiny
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPVisionConfig,
    Gemma2Config,
    LlamaConfig,
    LlavaConfig,
    StaticCache,
)
from typer.testing import CliRunner

from flashsparse_plugin import attention
from flashsparse_plugin.cli import app

PROMPTS = ("Once upon a time, in a small village by the sea, there lived", "The capital of France")
NAME = "unified_max"
LAYERS = tiny.REAL_LAYERS


class Counted(TorchDispatchMode):
    """How often our op ran."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function.name() == "flashsparse::unified_max_decode"
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def smollm2(real_dir):
    """By attention, and the tokenizer, which pads on the left."""
    tokenizer = AutoTokenizer.from_pretrained(real_dir, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    load = AutoModelForCausalLM.from_pretrained
    models = {
        name: load(real_dir, dtype=torch.float32, attn_implementation=name)
        for name in ("sdpa", NAME)
    }
    return models, tokenizer


def generated(model, given, **options):
    with Counted() as counted:
        tokens = model.generate(**given, max_new_tokens=16, do_sample=False, **options)
    return tokens.tolist(), counted.calls


@pytest.mark.slow
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
    assert (none, calls) == (0, LAYERS * steps) and steps > 0


@pytest.mark.slow
def test_compiled(smollm2, calibrated_dir):
    """A step is one graph, and gives the same logits."""
    models, tokenizer = smollm2
    models = {"sdpa": models["sdpa"], NAME: load(calibrated_dir)}
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
    assert counts(models[NAME]) == [(0, 2 * 9)] * LAYERS


@pytest.mark.oldest_transformers
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


@pytest.mark.oldest_transformers
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_capped_scores(options):
    """Gemma 2: the prompt as in "eager", and each new token through our op, with the cap."""
    config = Gemma2Config(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, sliding_window=8,
        attn_logit_softcapping=2.0, initializer_range=0.5, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.arange(1, 25).view(2, 12)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][0, :3] = 0
    if options:
        options = options | {"disable_compile": True}
    asked = {"output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
    results = []
    for name in ("eager", NAME):
        model.set_attn_implementation(name)
        with Counted() as counted:
            out = model.generate(**given, max_new_tokens=8, do_sample=False, **asked, **options)
        results.append(out)
    assert counted.calls == 2 * 7
    assert results[0].sequences.tolist() == results[1].sequences.tolist()
    torch.testing.assert_close(results[0].logits, results[1].logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(results[0].logits[0], results[1].logits[0])  # the prompt's


SINKS = dict(
    vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, sliding_window=8, num_local_experts=2,
    num_experts_per_tok=1, initializer_range=0.5, pad_token_id=0,
)  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_sinks(options):
    """gpt-oss: the prompt as in "eager", and each new token through our op, with the sinks."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**SINKS)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.arange(1, 25).view(2, 12)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][0, :3] = 0
    if options:
        options = options | {"disable_compile": True}
    asked = {"output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
    results = []
    for name in ("eager", NAME, NAME):
        model.set_attn_implementation(name)
        if len(results) == 2:  # without them the comparison would prove nothing
            for layer in model.model.layers:
                layer.self_attn.sinks.data.fill_(-torch.inf)
        with Counted() as counted, torch.no_grad():
            out = model.generate(**given, max_new_tokens=8, do_sample=False, **asked, **options)
        results.append(out)
    eager, ours, without = results
    assert counted.calls == 2 * 7
    assert eager.sequences.tolist() == ours.sequences.tolist()
    torch.testing.assert_close(eager.logits, ours.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(eager.logits[0], ours.logits[0])  # the prompt's
    assert (ours.logits[0] - without.logits[0]).abs().max() > 0.1


def test_the_cap_matters():
    """Without it the test above would prove nothing."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=64, initializer_range=0.5,
        attn_logit_softcapping=2.0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    capped = model(torch.arange(1, 13)[None]).logits
    model.model.layers[0].self_attn.attn_logit_softcapping = None
    assert (model(torch.arange(1, 13)[None]).logits - capped).abs().max() > 0.1


# ---- with phi -----------------------------------------------------------------------------------


TINY = dict(
    vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1,
)  # fmt: skip


def entry_of(phi, **changes):
    layers = [each and {"phi": each, "a": -9.0, "b": 9.0, "recomputed": 0.0} for each in phi]
    return {"version": 1, "dtype": "bfloat16", "layers": layers, **changes}


@pytest.fixture(scope="module")
def calibrated_dir(real_dir, shakespeare, tmp_path_factory):
    """The same with an entry "unified_max" of two short windows."""
    path = tmp_path_factory.mktemp("calibrated") / "model"
    shutil.copytree(real_dir, path)
    text = path.parent / "text.txt"
    text.write_text(shakespeare[:100_000])
    command = ["calibrate", str(path), "--text", str(text), "--tokens", "384", "--context", "192"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    return path


def load(path, **changes):
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=NAME
    )
    for key, value in changes.items():
        setattr(model.config, key, value)
    return model


def references(model):
    layers = getattr(model, "model", model).layers
    return [layer.self_attn._unified_max_reference for layer in layers]


def counts(model):
    """Parts computed again and sequences times heads looked at, of each layer with phi."""
    return [tuple(each.counter.total.tolist()) for each in references(model) if each.counter]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_calibrated_it_is_the_same_text(smollm2, calibrated_dir, options):
    models, tokenizer = smollm2
    given = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    if options:
        options = options | {"disable_compile": True}
    expected, _ = generated(models["sdpa"], given, **options)
    model = load(calibrated_dir)
    assert len(model.config.unified_max["layers"]) == LAYERS
    tokens, calls = generated(model, given, **options)
    assert tokens == expected
    steps = calls // LAYERS
    assert steps > 0 and counts(model) == [(0, steps * 2 * 9)] * LAYERS


@pytest.mark.slow
def test_a_wrong_phi_is_counted_and_changes_nothing(smollm2, calibrated_dir):
    models, tokenizer = smollm2
    given = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    expected, _ = generated(models["sdpa"], given)
    entry = attention.unified_max_of(load(calibrated_dir).config).model_dump()
    entry["layers"][1]["phi"] = [500.0] * 9
    entry["layers"][3]["phi"][4] = -500.0
    entry["layers"][4] = None
    model = load(calibrated_dir, unified_max=entry)
    tokens, calls = generated(model, given)
    assert tokens == expected
    pairs = calls // LAYERS * 2
    wanted = {f"layer {n}": (0, pairs * 9) for n in range(LAYERS) if n != 4}
    wanted |= {"layer 1": (pairs * 9, pairs * 9), "layer 3": (pairs, pairs * 9)}
    assert counts(model) == list(wanted.values())
    gc.collect()  # models of other tests
    assert list(attention.counters().items()) == list(wanted.items())


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False], ids=["decode", "prompt-too"])
def test_calibrated_and_compiled(warm):
    """phi is made once, outside of the graph, and the graph counts."""
    if not warm and torch.__version__ < "2.13":
        pytest.skip("before torch 2.13 the first call of all is no single graph")
    config = LlamaConfig(**TINY, unified_max=entry_of([[0.0, 300.0], None]))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    prompt, step = torch.arange(1, 9)[None], torch.tensor([[9]])
    compiled = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        cache = StaticCache(config, max_cache_len=16)
        first = model.forward if warm else compiled
        first(input_ids=prompt, past_key_values=cache, use_cache=True)
        kept = references(model)
        assert counts(model) == [(0, 0)]
        out = compiled(input_ids=step, past_key_values=cache, use_cache=True).logits
        assert counts(model) == [(1, 2)]
        model.set_attn_implementation("sdpa")
        expected = model(torch.cat([prompt, step], 1)).logits[:, -1:]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert all(now is then for now, then in zip(references(model), kept, strict=True))


def run_with(entry, dtype=torch.float32):
    config = LlamaConfig(**TINY, unified_max=entry)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=dtype).eval()
    with Counted() as counted:
        model.generate(torch.arange(1, 9)[None], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert counted.calls > 0
    return model


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (entry_of([[0.0, 0.0]]), "has 1 layers, and the model has 2"),
        (entry_of([[0.0, 0.0]] * 3), "has 3 layers, and the model has 2"),
        (entry_of([[0.0] * 3, [0.0] * 2]), "layer 0: .* phi for 3 heads, and the layer has 2"),
        (entry_of([[0.0] * 2, [0.0]]), "layer 1: .* phi for 1 heads"),
        (entry_of([[0.0, float("nan")]] * 2), "unified_max.layers.0: .*finite"),
        (entry_of([[0.0, 0.0]] * 2, version=2), "unified_max.version"),
        (entry_of([[0.0, 0.0]] * 2, dtype="int8"), "unified_max.dtype"),
        ("yes", "unified_max"),
    ],
)
def test_an_entry_that_cannot_be_meant(entry, message):
    with pytest.raises(attention.CalibrationError, match=message):
        run_with(entry)


def test_phi_of_another_dtype_is_left_alone(caplog):
    entry = entry_of([[0.0, 0.0]] * 2)
    for _ in range(2):
        model = run_with(entry, torch.float16)
    assert references(model)[0].phi is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "chosen for bfloat16 and does not fit float16" in caplog.text
    model = run_with(entry, torch.bfloat16)
    assert references(model)[0].phi.tolist() == [0.0, 0.0]


@pytest.mark.oldest_transformers
def test_the_language_model_of_a_multimodal_one():
    """Its entry stands in "text_config", where calibrate writes it."""
    text = LlamaConfig(**TINY, unified_max=entry_of([[0.0, 300.0], None]))
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        image_size=8, patch_size=4,
    )  # fmt: skip
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=63)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation=NAME).eval()
    model.generate(torch.arange(1, 9)[None], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert counts(model.model.language_model) == [(2, 2 * 2)]


WITHOUT_SDPA = {
    # Attention code of their own, some of it behind a table of classes.
    "BloomConfig": dict(n_head=2),
    "CodeGenConfig": dict(n_head=2, n_embd=32, rotary_dim=8),
    "FalconConfig": dict(num_attention_heads=2),
    "GPTJConfig": dict(n_head=2, n_embd=32, rotary_dim=8),
    "GPTNeoConfig": dict(num_heads=2, num_layers=2, attention_types=[[["global"], 2]]),
    "MptConfig": dict(d_model=32, n_heads=2),
    "XGLMConfig": dict(d_model=32, attention_heads=2, ffn_dim=32),
    # Keys that are values, too, beside sinks.
    "DeepseekV4Config": dict(num_attention_heads=2, num_hidden_layers=1),
}


@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_models_that_it_does_not_fit_are_refused_by_name(name):
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=32)
    config = getattr(transformers, name)(**sizes | WITHOUT_SDPA[name])
    with pytest.raises(
        ValueError, match=r'unified_max": \w+ (has attention|does not support sdpa)'
    ):
        AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    try:
        model.set_attn_implementation(NAME)  # of code of its own transformers changes nothing
    except ValueError as error:
        assert 'Remedy: attn_implementation="eager"' in str(error)
    assert model.config._attn_implementation == "eager"


def test_a_mask_of_another_length_than_the_cache_goes_through_sdpa():
    """RecurrentGemma's cache holds a window, and its mask every position."""
    sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=3)
    heads = dict(num_attention_heads=1, head_dim=64, lru_width=64, attention_window_size=8)
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(**sizes, **heads, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    ids = torch.arange(1, 25).view(2, 12)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][0, :3] = 0
    expected, _ = generated(model, given)
    model.set_attn_implementation(NAME)
    assert generated(model, given)[0] == expected
