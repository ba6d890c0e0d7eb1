# SPDX-License-Identifier: Apache-2.0
"""`flashsparse advise`: from a config.json alone, and where it sends people elsewhere."""

import json
import re

import pytest
from typer.testing import CliRunner

from flashsparse_plugin.cli import app
from flashsparse_plugin.cli.advise import _sentence
from flashsparse_plugin.data_sheets import GPU_NAMES
from flashsparse_plugin.dataflow import advice
from flashsparse_plugin.gpu import gpu_named
from flashsparse_plugin.known_quality import needs_training
from flashsparse_plugin.served import served

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def advise(*arguments):
    return CliRunner().invoke(app, ["advise", *map(str, arguments)])


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_a_config_is_enough(llama):
    result = advise(llama / "config.json", "--gpu", "H200", "--batch", "1,64", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    shapes = ("6144x4096", "4096x4096", "28672x4096", "4096x14336")  # as engines merge them
    assert found["layers"] == dict.fromkeys(shapes, 32)
    choices = {choice["title"]: choice for choice in found["choices"]}
    ours = {"tiled_bitmap, 50%", "tiled_bitmap, 50%, int8", "2:4, int8"}
    assert {"dense", "fp8", "int4", *ours} <= choices.keys()
    dense = choices["dense"]
    assert dense["bytes"] == 2 * 8_030_261_248  # parameters of Llama 3 8B
    assert choices["2:4"]["linear_bytes"] == dense["linear_bytes"] * 9 / 16
    rates = {title: choice["tokens_per_second"]["1"] for title, choice in choices.items()}
    assert rates["dense"] < rates["fp8"] < rates["2:4"] < rates["2:4, int8"]  # as far.csv
    wins = found["faster_from_zeros"]["tiled_bitmap"]
    assert 0 < wins["1"]["dense"] <= 0.65 and wins["64"]["fp8"] is None


def test_it_says_where_to_leave_us():
    """8 bits on a small layer: fp8 is as fast, which docs/values.md has measured."""
    text = advise("4096x4096", "--gpu", "H200", "--batch", "64").stdout
    assert "Batch 64, 8 bits or more: do not use us here: fp8 is" in " ".join(text.split())
    found = json.loads(advise("57344x8192", "--batch", "1", "--json").stdout)
    assert [verdict["use"] for verdict in found["verdicts"] if not verdict["prompt"]] == [True] * 2


def test_prompts_have_a_column_and_int4_says_that_it_is_modelled():
    """Dense int4 multiplies in 16 bits: what it gains with few tokens it loses with a prompt."""
    for gpu, share in (("H200", 0.46), ("A100", 0.60)):
        found = json.loads(advise("28672x4096", "--gpu", gpu, "--json").stdout)
        rates = {each["title"]: each["tokens_per_second"] for each in found["choices"]}
        ratio = {n: rates["int4"][n] / rates["dense"][n] for n in ("1", "2048")}
        assert ratio["1"] > 1.9 and ratio["2048"] == pytest.approx(share, rel=0.05)
        assert [each["batch"] for each in found["verdicts"] if each["prompt"]] == [2048, 2048]
    text = " ".join(advise("28672x4096", "--gpu", "H200").stdout.split())
    assert "Prompt 2048" in text and "do not use us here: fp8 is" in text
    assert "int4 with prompts: modelled" in text and "vllm/pull/2497" in text
    assert "modelled" not in advise("28672x4096", "--gpu", "H200", "--prompt", "0").stdout


@pytest.mark.parametrize("gpu", GPU_NAMES)
def test_nothing_ruinous_is_recommended(gpu):
    """What ruins a model in one shot is named after training only, or as trained for it."""
    device = gpu_named(gpu)
    choices = [*advice.dense_choices(device), *advice.sparse_choices(device, 0.5)]
    for model in ("Llama-3.1-8B", "Llama-3.2-1B", "Llama-3.3-70B"):
        for tokens in (1, 8, 2048):
            if device.unverified and tokens == 2048:  # no more than the zeros can bring
                shape = (28672, 4096)
                dense = choices[0].seconds(shape, tokens)
                assert all(
                    dense < 1.05 * each.seconds(shape, tokens) / (1 - each.sparsity)
                    for each in choices
                    if each.kind == "ours"
                )
            for verdict in advice.verdicts(choices, served(model).model_shapes, tokens):
                ours = verdict.ours
                assert not ours.is_trained_only and "L=" not in ours.title
                sentence = _sentence(verdict).plain
                if verdict.is_for_us and needs_training(ours.rule, ours.type):
                    assert f"as fast as {verdict.rival.title}, after training only" in sentence
                if verdict.trained is not None:
                    assert "only if the model was trained for it" in sentence
                assert "best" not in sentence


@pytest.mark.parametrize(("batches", "tables"), [("1,8,64", 1), ("1,8,64,512", 2)])
def test_nothing_is_cut_off_at_80_columns(llama, batches, tables):
    (llama / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 4}))
    more = ("--batch", batches, "--prompt", "0", "--zeros", "0.625")
    text = advise(llama, "--gpu", "H200", *more).stdout
    lines = [line for line in text.splitlines() if line.startswith("tiled_bitmap, 62%, int8")]
    assert len(lines) == tables and max(map(len, lines)) <= 80
    ratios = [each for line in lines for each in re.findall(r"\d\.\d\d(?=  |$)", line.rstrip())]
    assert len(ratios) == batches.count(",") + 1


def test_quality_stands_beside_speed_and_what_it_ruins_is_not_the_best():
    """With half zeros vectors of 32 rows are the fastest, and nothing is left of a model."""
    target = ("Llama-3.1-8B", "--gpu", "H200", "--batch", "8")
    found = json.loads(advise(*target, "--json").stdout)
    costs = {each["title"]: each["perplexity_over_dense"] for each in found["choices"]}
    assert min(costs["16:32, L=32, int8"]["one_shot"]) > 10
    assert max(costs["tiled_bitmap, 50%"]["one_shot"]) < 2
    assert costs["dense"]["one_shot"] == costs["lossless"]["one_shot"] == [1.0]
    assert "Sparse-Llama-3.1-8B-2of4" in costs["2:4"]["published"][0]
    for verdict in found["verdicts"][:2]:
        assert verdict["ours"].startswith("2:4, int") and verdict["after_training_only"]
    assert found["verdicts"][0]["if_trained_for_it"].startswith("16:32, L=32")
    text = " ".join(advise(*target).stdout.split())
    assert "as fast as fp8, after training only (perplexity / dense 3.1→2.0)" in text
    assert "times, only if the model was trained for it.)" in text
    assert "(https://huggingface.co/RedHatAI/Sparse-Llama-3.1-8B-2of4)" in text


def test_a_gpu_that_nobody_measured_says_so():
    text = " ".join(advise("4096x4096", "--gpu", "4090", "--batch", "1").stdout.split())
    assert text.startswith("Linear layers on an RTX 4090") and "its data sheet" in text
    assert "Estimated from unverified rates: L2." in text
    assert "data sheet" not in advise("4096x4096", "--gpu", "H100", "--batch", "1").stdout


@pytest.mark.parametrize("command", [["inspect"], ["convert", "out", "--format", "auto"]])
def test_other_commands_know_the_same_gpus(command, tmp_path):
    """A name is checked before anything is read or imported."""
    name, *rest = command
    result = CliRunner().invoke(app, [name, str(tmp_path), *rest, "--for", "4070"])
    assert result.exit_code == 2
    assert "'4070' is not one of H200, " in " ".join(result.stderr.replace("│", " ").split())
    result = CliRunner().invoke(app, [name, str(tmp_path), *rest, "--for", "rtx-4090"])
    assert "config.json" in result.stderr  # the GPU is taken, the empty folder is not


def test_an_a100_has_no_fp8():
    found = json.loads(advise("4096x4096", "--gpu", "A100", "--batch", "8", "--json").stdout)
    assert [c["title"] for c in found["choices"] if c["kind"] != "ours"] == ["dense", "int4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4096x4096", "--batch", "0"], "not up to four numbers"),
        (["4096x4096", "--batch", "1,a"], "not up to four numbers"),
        (["0x4096"], "between 1 and 2^23"),
        (["4096x4096", "--gpu", "this"], "torch sees no GPU here"),
        (["4096x4096", "--gpu", "TPU"], "'TPU' is not one of H200, H100, A100, "),
        (["nothing-here"], "is not a directory"),
    ],
)
def test_what_is_refused(arguments, message):
    result = advise(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_layers_without_columns_are_refused(llama):
    (llama / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 0}))
    result = advise(llama)
    assert result.exit_code == 1
    assert "proj' is [" in result.stderr and "Fetch config.json again" in result.stderr


def test_a_config_that_asks_for_a_million_layers_is_refused(llama):
    (llama / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 10**6}))
    result = advise(llama)
    assert result.exit_code == 1
    assert "more than 10,000 modules" in result.stderr


MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    **{"hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144},
    **{"num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4},
    **{"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936},
}


def test_experts_have_the_bits_of_each(tmp_path):
    """Qwen3-30B-A3B, two layers of it: its experts are nearly all of its weights. 2:4 has a kernel
    for them, and other lines of ours leave them dense."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    found = json.loads(advise(tmp_path, "--gpu", "H200", "--batch", "8,64", "--json").stdout)
    [experts] = found["experts"]
    assert experts["matrices"] == {"1536x2048": 2, "2048x768": 2}
    assert (experts["count"], experts["active"]) == (128, 8)
    assert experts["read"] == {"8": 51.6, "64": 125.9, "2048": 128.0}
    nbytes = {choice["title"]: choice["linear_bytes"] for choice in found["choices"]}
    assert nbytes["fp8"] == nbytes["dense"] / 2 and nbytes["int4"] < 0.26 * nbytes["dense"]
    assert nbytes["2:4, int8"] < 0.33 * nbytes["dense"] < nbytes["tiled_bitmap, 50%"]
    use = {(x["batch"], x["least_bits"]): x for x in found["verdicts"]}
    assert use[64, 8]["use"] and use[64, 8]["ours"] == "2:4, int8"
    assert not use[2048, 8]["use"]
    text = " ".join(advise(tmp_path, "--gpu", "H200", "--batch", "8").stdout.split())
    assert "Experts are " in text and "2:4 has a grouped kernel for them" in text
    assert "A token goes to 8 of 128" in text


# What the models' authors say of their parameters, embeddings counted, in billions.
PARAMETERS = {
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 30.5,
    "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 116.8,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.7,
    "Qwen3-235B-A22B-Thinking-2507": 235,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_mixtures_are_known_by_name(name):
    found = json.loads(advise(name, "--gpu", "H200", "--batch", "8", "--json").stdout)
    (dense,) = [each for each in found["choices"] if each["kind"] == "dense"]
    assert dense["bytes"] / 2e9 == pytest.approx(PARAMETERS[name], rel=0.01)
