# SPDX-License-Identifier: Apache-2.0
"""`flashsparse prune` on a tiny random model."""

import json
import shutil

import families
import pytest
import torch
from checkpoints import load_all
from safetensors.torch import load_file, save_file
from tiny_causal_lms import character_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.cli import app

WINDOWS = ["--samples", "4", "--length", "32"]


def prune(*arguments):
    return CliRunner().invoke(app, ["prune", *map(str, arguments)])


def linears(path):
    tensors = load_file(path / "model.safetensors")
    return {n: t for n, t in tensors.items() if n.endswith("proj.weight")}


def test_wanda_writes_a_dense_model_with_zeros(model_dir, text_file, tmp_path):
    out = tmp_path / "deep" / "pruned"
    result = prune(model_dir, out, "--calibration", text_file, *WINDOWS, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["method"] == "wanda"
    assert report["sparsity"] == pytest.approx(0.5)
    assert len(report["layers"]) == 21
    assert report["out"] == str(out)
    before, after = linears(model_dir), linears(out)
    for name, weight in after.items():
        kept = weight != 0
        assert kept.sum(1).eq(weight.shape[1] / 2).all()  # row by row
        assert torch.equal(weight[kept], before[name][kept])
    files = {f.name for f in model_dir.iterdir()} | {"README.md"}
    assert files == {f.name for f in out.iterdir()}
    assert [f.name for f in out.parent.iterdir()] == ["pruned"]


def test_the_table_counts_by_kind(model_dir, tmp_path):
    result = prune(model_dir, tmp_path / "out", "--method", "magnitude", "--sparsity", "0.75")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["down_proj"][1:4] == ["3", "4.61k", "75.0%"]
    assert rows["all"][3] == "75.0%" and "least" not in result.stdout
    assert "lm_head" not in rows
    assert "score kept" in result.stdout and "without pattern" not in result.stdout
    assert f"flashsparse recover {tmp_path / 'out'} {model_dir} RECOVERED" in result.stdout
    assert "flashsparse convert RECOVERED PACKED\n" in result.stdout


def test_a_model_that_has_these_zeros_already_is_told(model_dir, tmp_path):
    how = ["--method", "magnitude", "--sparsity"]
    first = prune(model_dir, tmp_path / "once", *how, "0.75")
    again = prune(tmp_path / "once", tmp_path / "twice", *how, "0.5")
    told = "Nothing was lost: the model had as many zeros before"
    assert told in again.stdout and told not in first.stdout


def test_the_report_fits_80_columns(model_dir, text_file, tmp_path, monkeypatch):
    """Also with all its columns."""
    monkeypatch.setenv("COLUMNS", "80")
    budget = ["--budget", "0.5", "--allocate", "owl"]
    for number, how in enumerate((["--pattern", "2:4"], budget)):
        result = prune(
            model_dir, tmp_path / f"{number}", "--calibration", text_file, *WINDOWS, *how
        )
        assert result.exit_code == 0, result.stderr
        table = result.stdout.partition("\n\n")[0].splitlines()
        assert max(map(len, table)) <= 80 and len(table) == 9, result.stdout
        assert ("without pattern" in table[0]) != ("least" in table[0])
    assert "--format 2:4" not in result.stdout


@pytest.mark.parametrize(("given", "told"), [("50", "was 0.5 meant?"), ("-1", "from 0 to 1")])
def test_sparsity_is_a_share(model_dir, tmp_path, given, told):
    result = prune(model_dir, tmp_path / "out", "--method", "magnitude", "--sparsity", given)
    assert result.exit_code == 2 and told in result.stderr and "Traceback" not in result.stderr


def test_a_gpu_that_is_not_used_is_told(model_dir, text_file, tmp_path, monkeypatch):
    from flashsparse_plugin import diagnostics

    monkeypatch.setattr(diagnostics, "hardware", lambda: {"driver": "580.95"})
    result = prune(model_dir, tmp_path / "out", "--calibration", text_file, *WINDOWS)
    assert result.exit_code == 0
    assert "NVIDIA driver (580.95), but this torch is a CPU build" in " ".join(
        result.stderr.split()
    )


def test_reordered_channels_are_written(model_dir, text_file, tmp_path):
    out = tmp_path / "out"
    options = ["--pattern", "2:4", "--permute", "--calibration", text_file, *WINDOWS]
    result = prune(model_dir, out, *options)
    assert result.exit_code == 0, result.stderr
    assert "2:4, hidden channels reordered" in (out / "README.md").read_text()
    before, after = linears(model_dir), linears(out)
    name = "model.layers.1.mlp.down_proj.weight"
    kept = after[name] != 0
    assert not after[name].equal(before[name] * kept)  # columns have moved
    for row, was in zip(after[name], before[name], strict=True):  # and no value has changed
        assert set(row[row != 0].tolist()) <= set(was.tolist())
    result = prune(model_dir, tmp_path / "wrong", "--method", "magnitude", "--permute")
    assert result.exit_code == 2 and "give --pattern" in " ".join(result.stderr.split())


def test_a_pattern_holds(model_dir, text_file, tmp_path):
    out = tmp_path / "out"
    options = ["--pattern", "1:4-L2", "--calibration", text_file, *WINDOWS]
    result = prune(model_dir, out, *options)
    assert result.exit_code == 0 and "without pattern" in result.stdout
    assert "flashsparse convert RECOVERED PACKED --format 1:4-L2" in result.stdout
    for weight in linears(out).values():
        kept = weight != 0
        assert kept.view(-1, 4).sum(1).eq(1).all()
        assert torch.equal(kept[::2], kept[1::2])


def test_sparsegpt_writes_the_values_that_it_updated(model_dir, text_file, tmp_path):
    out = tmp_path / "out"
    options = ["--calibration", text_file, *WINDOWS, "--method", "sparsegpt", "--pattern", "2:4"]
    result = prune(model_dir, out, *options)
    assert result.exit_code == 0, result.stderr
    before = linears(model_dir)
    for name, weight in linears(out).items():
        kept = weight != 0
        assert kept.view(-1, 4).sum(1).eq(2).all() and weight.dtype == before[name].dtype
        assert not torch.equal(weight[kept], before[name][kept])


def test_a_budget_is_shared_and_a_preset_is_the_papers(model_dir, text_file, tmp_path):
    text = ["--calibration", text_file, *WINDOWS]
    budget = ["--budget", "0.5", "--allocate", "owl"]
    result = prune(model_dir, tmp_path / "owl", *text, *budget, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert len({round(layer["sparsity"], 2) for layer in report["layers"]}) > 1
    result = prune(model_dir, tmp_path / "paper", *text, "--preset", "flash-llm", "--json")
    report = json.loads(result.stdout)
    assert report["method"] == "taylor" and report["sparsity"] == pytest.approx(0.8, abs=1e-3)


def test_ignored_layers_stay_as_they_were(model_dir, tmp_path):
    out = tmp_path / "out"
    options = ["--method", "magnitude", "--ignore", "lm_head", "--ignore", "re:.*down_proj"]
    assert prune(model_dir, out, *options).exit_code == 0
    before = linears(model_dir)
    for name, weight in linears(out).items():
        assert torch.equal(weight, before[name]) == ("down_proj" in name)


def test_dtype_is_that_of_the_weights_written(model_dir, tmp_path):
    out = tmp_path / "out"
    assert prune(model_dir, out, "--method", "magnitude", "--dtype", "float16").exit_code == 0
    assert {w.dtype for w in linears(out).values()} == {torch.float16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--calibration FILE.txt"),
        (["--method", "magnitude", "--calibration", "TEXT"], "magnitude uses no text"),
        (["--method", "magnitude", "--pattern", "2-4"], "not a pattern N:M"),
        (
            ["--method", "magnitude", "--pattern", "1:4-L2", "--vector-length", "4"],
            "1:4-L2 says 2: leave one of the two out",
        ),
        (["--method", "magnitude", "--sparsity", "1.5"], "not a share of zeros"),
        (["--method", "guess"], "guess"),
        (["--method", "taylor"], "taylor needs calibration text"),
        (["--allocate", "owl"], "needs --budget"),
        (["--budget", "0.5", "--sparsity", "0.5"], "give one"),
        (
            ["--method", "magnitude", "--budget", "0.5", "--allocate", "owl"],
            "owl needs calibration",
        ),
        (["--calibration", "/nowhere.txt"], "/nowhere.txt"),
    ],
)
def test_wrong_usage(model_dir, text_file, tmp_path, options, message):
    options = [str(text_file) if option == "TEXT" else option for option in options]
    result = prune(model_dir, tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_model_and_an_existing_output_are_wrong_usage(model_dir, tmp_path):
    result = prune(tmp_path / "none", tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 2 and "is not a directory" in result.stderr
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    result = prune(model_dir, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert (tmp_path / "out" / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magnitude", "--pattern", "4:2"], "4:2"),
        (["--method", "magnitude", "--pattern", "2:4", "--sparsity", "0.7"], "0.7"),
        (["--calibration", "TEXT", "--scope", "global", *WINDOWS], "wanda"),
        (["--calibration", "TEXT", "--length", "100000"], "tokens"),
    ],
)
def test_what_fails_leaves_nothing_behind(model_dir, text_file, tmp_path, options, message):
    options = [str(text_file) if option == "TEXT" else option for option in options]
    result = prune(model_dir, tmp_path / "out", *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ") and message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_copied_that_a_link_out_leads_to_and_no_pickle(model_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model_dir, source)
    (tmp_path / "secret.txt").write_text("secret")
    (source / "vocab.txt").symlink_to(tmp_path / "secret.txt")
    (source / "README.md").write_text("# Card")
    for name in ("training_args.bin", "optimizer.pt", "state.pkl", "rng_state.npz", "old.ckpt"):
        (source / name).write_bytes(b"pickle")
    left = tmp_path / ".out.ab12_x9z" / "model"  # of a run of 0.1 that was killed
    left.mkdir(parents=True)
    result = prune(source, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 0, result.stderr
    assert "vocab.txt was not copied" in " ".join(result.stderr.split())
    expected = {path.name for path in model_dir.iterdir()} | {"README.md"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    assert {path.name for path in tmp_path.iterdir()} == {"source", "secret.txt", "out"}


def test_a_link_out_of_the_source_is_refused(model_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model_dir, source)
    (source / "model.safetensors").rename(tmp_path / "weights")
    (source / "model.safetensors").symlink_to(tmp_path / "weights")
    result = prune(source, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 1
    assert "is a link that leads out" in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_pickles_and_quantized_models_are_refused(model_dir, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "model.safetensors").unlink()
    torch.save({}, broken / "pytorch_model.bin")
    result = prune(broken, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 1 and "safetensors" in result.stderr

    quantized = tmp_path / "quantized"
    shutil.copytree(model_dir, quantized)
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "flashsparse"}
    (quantized / "config.json").write_text(json.dumps(config))
    result = prune(quantized, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 1 and "is packed already" in result.stderr


@pytest.mark.parametrize(
    "architecture",
    [
        "WhisperForConditionalGeneration",
        "BartForConditionalGeneration",
        "T5ForConditionalGeneration",
        "BertModel",
        "BertForSequenceClassification",
        "RobertaForSequenceClassification",
        "ViTForImageClassification",
        "CLIPModel",
        "LlavaForConditionalGeneration",
        "GPT2LMHeadModel",
        "FalconForCausalLM",
    ],
)
def test_a_model_comes_out_as_it_went_in(architecture, tmp_path):
    """With the tensors of the source, by their names, with more zeros in linear layers only."""
    families.build(architecture).save_pretrained(tmp_path / "in", max_shard_size="40KB")
    result = prune(tmp_path / "in", tmp_path / "out", "--method", "magnitude", "--sparsity", "0.8")
    assert result.exit_code == 0, result.stderr
    before, after = load_all(tmp_path / "in"), load_all(tmp_path / "out")
    assert before.keys() == after.keys()
    changed = set()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        kept = after[name] != 0
        assert torch.equal(after[name][kept], tensor[kept])
        if not torch.equal(after[name], tensor):
            changed.add(name)
            assert kept.float().mean() == pytest.approx(0.2, abs=0.01)
    weights = {name: tensor for name, tensor in before.items() if name.endswith(".weight")}
    assert changed == {name for name, t in weights.items() if (t == 0).float().mean() > 0.6}
    configs = [json.loads((tmp_path / x / "config.json").read_text()) for x in ("in", "out")]
    assert configs[0] == configs[1] and configs[1]["architectures"] == [architecture]


def test_wanda_on_layers_that_keep_their_weight_transposed(text_file, tmp_path):
    """Rows are output features, which are the columns of a Conv1D."""
    families.build("GPT2LMHeadModel").save_pretrained(tmp_path / "in")
    character_tokenizer().save_pretrained(tmp_path / "in")
    options = ["--calibration", text_file, "--samples", "2", "--length", "16"]
    result = prune(tmp_path / "in", tmp_path / "out", *options, "--sparsity", "0.875")
    assert result.exit_code == 0, result.stderr
    after = load_all(tmp_path / "out")
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        weight = after[f"transformer.h.1.{name}.weight"]
        assert (weight == 0).float().mean(0).eq(0.875).all(), name


def test_tensors_that_the_model_does_not_know_are_kept(model_dir, tmp_path):
    """As GPT-2's masks and BERT's position_ids in old files, and a head stored beside its twin."""
    old = tmp_path / "old"
    shutil.copytree(model_dir, old)
    tensors = load_file(old / "model.safetensors")
    more = {
        "model.layers.0.self_attn.mask": torch.ones(3, dtype=torch.uint8),
        "lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
    }
    save_file(tensors | more, old / "model.safetensors", {"format": "pt"})
    assert prune(old, tmp_path / "out", "--method", "magnitude").exit_code == 0
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == tensors.keys() | more.keys()
    for name, tensor in more.items():
        assert torch.equal(after[name], tensor)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("BertForMaskedLM", "BertForMaskedLM"), ("T5ForConditionalGeneration", "T5For")],
)
def test_wanda_is_for_models_that_continue_text(architecture, name, text_file, tmp_path):
    families.build(architecture).save_pretrained(tmp_path / "in")
    result = prune(tmp_path / "in", tmp_path / "out", "--calibration", text_file)
    assert result.exit_code == 1 and not (tmp_path / "out").exists()
    assert name in result.stderr and "continues text" in result.stderr
    assert "--method magnitude" in result.stderr and len(result.stderr) < 400


def test_what_the_file_keeps_merged_is_left_alone_by_name(tmp_path):
    """JetMoE multiplies by its experts itself; transformers splits the gate and up of DINOv2."""
    settings = {**families.FAMILIES["MixtralForCausalLM"], "num_key_value_heads": 2}
    config = AutoConfig.for_model(
        "jetmoe", **{k: v for k, v in settings.items() if k != "model_type"}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "in")
    result = prune(tmp_path / "in", tmp_path / "out", "--method", "magnitude", "--json")
    assert result.exit_code == 0, result.stderr
    note = "\n".join(json.loads(result.stdout)["warnings"])
    assert "weights of experts stay as they are" in note and "cannot be pruned" in note
    before, after = load_all(tmp_path / "in"), load_all(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(after[n], t) for n, t in before.items() if "experts" in n)

    for name in ("MixtralForCausalLM", "GptOssForCausalLM"):  # by themselves, and in one tensor
        families.build(name).save_pretrained(tmp_path / name)
        out = tmp_path / f"{name}-out"
        result = prune(tmp_path / name, out, "--method", "magnitude", "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["warnings"] == []
        weights = [t for n, t in load_all(out).items() if "experts" in n and "bias" not in n]
        assert len(weights) >= 4
        assert all(float((t == 0).float().mean()) >= 0.49 for t in weights)

    families.build("Dinov2Model-swiglu").save_pretrained(tmp_path / "vit")
    result = prune(tmp_path / "vit", tmp_path / "vit-out", "--method", "magnitude", "--json")
    assert result.exit_code == 0, result.stderr
    (note,) = json.loads(result.stdout)["warnings"]
    assert "layer.0.mlp.gate_proj and 3 more (transformers makes it of a tensor" in note


def test_routers_are_not_pruned(tmp_path):
    families.build("JambaForCausalLM").save_pretrained(tmp_path / "in")
    how = ("--method", "magnitude", "--sparsity", "0.9", "--json")
    result = prune(tmp_path / "in", tmp_path / "out", *how)
    assert result.exit_code == 0, result.stderr
    notes = " ".join(json.loads(result.stdout)["warnings"])
    assert "Routers are not pruned: model.layers." in notes and ".router (router)" in notes
    before, after = load_all(tmp_path / "in"), load_all(tmp_path / "out")
    routers = [name for name in before if name.endswith("router.weight")]
    assert routers
    assert all(torch.equal(after[name], before[name]) for name in routers)


def test_a_million_layers_are_refused_at_once(model_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model_dir, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**15}))
    result = prune(source, tmp_path / "out", "--method", "magnitude")
    assert result.exit_code == 1 and "different models" in " ".join(result.stderr.split())


def test_dense_blocks_beside_24(model_dir, text_file, tmp_path):
    out = tmp_path / "pruned"
    how = ["--pattern", "2:4", "--dense", "0.25"]
    result = prune(model_dir, out, "--calibration", text_file, *WINDOWS, *how)
    assert result.exit_code == 0, result.stderr
    assert "flashsparse convert RECOVERED PACKED --format hybrid\n" in result.stdout
    zeros = sum(int((weight == 0).sum()) for weight in linears(out).values())
    share = zeros / sum(weight.numel() for weight in linears(out).values())
    assert share == pytest.approx(0.375, abs=0.02)
    assert "2:4, 0.25 of the 16x256 blocks dense" in (out / "README.md").read_text()
    packed = tmp_path / "packed"
    made = CliRunner().invoke(app, ["convert", str(out), str(packed), "--format", "hybrid-int8"])
    assert made.exit_code == 0, made.output
    config = json.loads((packed / "config.json").read_text())["quantization_config"]
    assert (config["format"], config["options"]) == ("hybrid_24", {"values": "int8"})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (["--dense", "0.25"], "dense blocks stand beside 2:4 ones: give --pattern 2:4"),
        (["--dense", "0.25", "--pattern", "4:8"], "give --pattern 2:4"),
        (
            ["--dense", "25", "--pattern", "2:4"],
            "25 is not a share of blocks from 0 to 1: was 0.25",
        ),
    ],
)
def test_dense_blocks_that_cannot_be(model_dir, tmp_path, how, message):
    result = prune(model_dir, tmp_path / "out", "--method", "magnitude", *how)
    assert result.exit_code == 2 and message in " ".join(result.stderr.replace("│", "").split())
