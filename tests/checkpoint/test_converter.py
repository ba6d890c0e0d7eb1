# SPDX-License-Identifier: Apache-2.0
"""convert_checkpoint: bit for bit, complete, honest about what it left dense."""

import json
import logging
import shutil

import pytest
import torch
from checkpoints import (
    assert_same_model,
    edit_config,
    edit_weights,
    load_all,
    quantization,
    save_llama,
    unpack,
)
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory, convert_checkpoint
from flashsparse_plugin.checkpoint.convert import converter as converter_module
from flashsparse_plugin.formats.pattern.nm_vector import NMVector

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sparsity", [0.55, 0.8, 1.0])
def test_bit_for_bit(tmp_path, dtype, sparsity):
    dense = save_llama(tmp_path / "dense", dtype=dtype, sparsity=sparsity)
    report = convert_checkpoint(dense, tmp_path / "out")
    assert assert_same_model(dense, tmp_path / "out", dtype) == len(report.packed) == 14
    assert report.sparsity == pytest.approx(sparsity, abs=0.01)
    assert report.warnings == []
    config = quantization(tmp_path / "out")
    assert config["dtype"] == str(dtype).removeprefix("torch.")


def test_strange_values_and_biases_survive(tmp_path):
    dense = save_llama(tmp_path / "dense", attention_bias=True, intermediate_size=131)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3e38])
    payload = torch.tensor([0x7FC1, -0x7F, 0x0001], dtype=torch.int16)

    def change(tensors):
        weight = tensors["model.layers.1.mlp.down_proj.weight"]
        weight[0, :6] = special.bfloat16()
        weight.view(torch.int16)[1, :3] = payload

    edit_weights(dense, change)
    convert_checkpoint(dense, tmp_path / "out")
    assert assert_same_model(dense, tmp_path / "out") == 14
    after = load_all(tmp_path / "out")
    assert "model.layers.0.self_attn.q_proj.bias" in after
    weight = unpack(after, "model.layers.1.mlp.down_proj", (128, 131))
    assert weight[0, 0].isnan()
    assert torch.equal(weight.view(torch.int16)[1, :3], payload)


def test_config_describes_the_result(llama, tmp_path):
    report = convert_checkpoint(llama, tmp_path / "out")
    before = json.loads((llama / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    own = after.pop("quantization_config")
    assert after == before
    assert own == {
        "quant_method": "flashsparse",
        "format": "tiled_bitmap",
        "format_version": 1,
        "dtype": "bfloat16",
        "sparsity": round(report.sparsity, 4),
        "pruning": "none",
        "ignore": ["lm_head"],
        "layers": {"lm_head": {"format": "dense", "reason": "ignored by name"}},
    }
    assert fs.FlashSparseConfig(**own).layers["lm_head"].format == "dense"


def test_an_empty_ignore_list_is_written(llama, tmp_path):
    edit_weights(llama, lambda tensors: tensors["lm_head.weight"][:, 10:].zero_())
    report = convert_checkpoint(llama, tmp_path / "out", ignore=[])
    assert report.layers[-1].is_packed
    assert assert_same_model(llama, tmp_path / "out") == 15
    assert quantization(tmp_path / "out")["ignore"] == []


def test_what_lies_beside_the_weights_comes_along(llama, tmp_path):
    (llama / "additional_chat_templates").mkdir()
    (llama / "additional_chat_templates" / "rag.jinja").write_text("rag")
    (llama / "additional_chat_templates" / "evil.jinja").symlink_to("/etc/hostname")
    (llama / "merges.txt").symlink_to("/etc/hostname")
    (llama / ".hidden.json").write_text("{}")
    (llama / "model.gguf").write_bytes(b"weights")
    (llama / "onnx").mkdir()
    (llama / "rust_model.ot").write_bytes(b"weights")
    report = convert_checkpoint(llama, tmp_path / "out")
    out = tmp_path / "out"
    files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert files == {
        "LICENSE",
        "README.md",
        "additional_chat_templates/rag.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for name in files - {"README.md", "config.json", "model.safetensors"}:
        assert (out / name).read_bytes() == (llama / name).read_bytes()
    assert len(report.warnings) == 1
    assert "merges.txt" in report.warnings[0]


def test_sharded_in_and_out(sharded, tmp_path):
    out = tmp_path / "out"
    report = convert_checkpoint(sharded, out, max_shard_size="60kB")
    assert assert_same_model(sharded, out) == 14
    index = json.loads((out / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert count > 3
    assert files == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    assert index["metadata"]["total_size"] == report.bytes_out
    assert report.bytes_out == sum(tensor.nbytes for tensor in load_all(out).values())
    for file in files:
        tensors = load_file(out / file)
        assert {k for k, v in index["weight_map"].items() if v == file} == tensors.keys()
        # more than the limit only where it is a single layer
        assert sum(t.nbytes for t in tensors.values()) <= 60_000 or len(tensors) <= 2
        for name in tensors:
            if name.endswith("weight_packed"):
                assert name.replace("weight_packed", "unit_offsets") in tensors
    ModelDirectory(out)


@pytest.mark.parametrize("size", ["5", "0.001MB", "1KiB", 1000, "10 GB"])
def test_shard_sizes(llama, tmp_path, size):
    convert_checkpoint(llama, tmp_path / "out", max_shard_size=size)
    assert assert_same_model(llama, tmp_path / "out") == 14
    assert (tmp_path / "out" / INDEX).exists() == (size != "10 GB")


@pytest.mark.parametrize("size", ["", "GB", "-1GB", "5XB", 0, "0.1", "iB", "1e3"])
def test_shard_sizes_that_are_none(llama, tmp_path, size):
    with pytest.raises(CheckpointError, match="max_shard_size"):
        convert_checkpoint(llama, tmp_path / "out", max_shard_size=size)


def test_tied_head_stays_tied(tmp_path):
    dense = save_llama(tmp_path / "dense", tie_word_embeddings=True)
    report = convert_checkpoint(dense, tmp_path / "out", ignore=[])
    assert assert_same_model(dense, tmp_path / "out") == 14
    assert not [name for name in load_all(tmp_path / "out") if name.startswith("lm_head")]
    assert report.layers[-1].reason == "tied to model.embed_tokens.weight"
    assert quantization(tmp_path / "out")["layers"]["lm_head"]["format"] == "dense"


def test_names_without_prefix_are_kept(llama, tmp_path):
    def change(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    edit_weights(llama, change)
    report = convert_checkpoint(llama, tmp_path / "out")
    assert assert_same_model(llama, tmp_path / "out") == 14
    assert report.layers[0].name == "model.layers.0.self_attn.q_proj"


def test_ignored_layers_stay_dense(llama, tmp_path):
    ignore = ["lm_head", "layers.0.mlp", "re:.*1.*down_proj"]
    report = convert_checkpoint(llama, tmp_path / "out", ignore=ignore)
    assert assert_same_model(llama, tmp_path / "out") == 10
    dense = {layer.name for layer in report.layers if not layer.is_packed}
    assert dense == {
        "lm_head",
        *(f"model.layers.0.mlp.{x}_proj" for x in ("gate", "up", "down")),
        "model.layers.1.mlp.down_proj",
    }
    assert dense == quantization(tmp_path / "out")["layers"].keys()


@pytest.mark.parametrize("ignore", [[""], ["re:"], ["re:("]])
def test_patterns_that_are_none(llama, tmp_path, ignore):
    with pytest.raises(ValueError, match="pattern"):
        convert_checkpoint(llama, tmp_path / "out", ignore=ignore)
    assert not list(tmp_path.glob("out*"))


def test_a_layer_that_would_grow_stays_dense(llama, tmp_path, caplog):
    name = "model.layers.0.mlp.up_proj"
    edit_weights(llama, lambda tensors: tensors[f"{name}.weight"].fill_(1))
    report = convert_checkpoint(llama, tmp_path / "out")
    assert assert_same_model(llama, tmp_path / "out") == 13
    layer = next(layer for layer in report.layers if layer.name == name)
    dense = 200 * 128 * 2
    assert (layer.bytes_dense, layer.sparsity) == (dense, 0)
    assert layer.bytes_packed > dense
    assert "larger packed than dense" in layer.reason
    assert quantization(tmp_path / "out")["layers"][name]["reason"] == layer.reason
    (warning,) = report.warnings
    for word in ("1 of 15", name, "59.6 kB packed, 51.2 kB dense", "100.0%", "--pack-all"):
        assert word in warning
    assert [(r.levelno, r.message) for r in caplog.records] == [(logging.WARNING, warning)]


def test_pack_all(tmp_path):
    dense = save_llama(tmp_path / "dense", sparsity=0.02)
    with pytest.raises(CheckpointError, match=r"sparsest.*% zeros.*flashsparse prune.*--pack-all"):
        convert_checkpoint(dense, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    report = convert_checkpoint(dense, tmp_path / "out", pack_all=True)
    assert assert_same_model(dense, tmp_path / "out") == 14
    assert "14 layers are larger packed than dense, as asked" in report.warnings[0]


def test_everything_ignored(llama, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"all 15 linear layers stay dense: .*ignored by name.*--ignore"
    ):
        convert_checkpoint(llama, tmp_path / "out", ignore=["model", "lm_head"])
    assert not list(tmp_path.glob("out*"))


def test_float32_is_rounded_with_a_warning(tmp_path):
    dense = save_llama(tmp_path / "dense", dtype=torch.float32)
    report = convert_checkpoint(dense, tmp_path / "out")
    assert assert_same_model(dense, tmp_path / "out") == 14  # all others are still float32
    packed = {f"{layer.name}.weight" for layer in report.packed}
    weights = [t for name, t in load_all(dense).items() if name in packed]
    changed = sum(int((t != t.bfloat16().float()).sum()) for t in weights)
    assert report.rounded_values == changed > 0
    assert f"{changed:,} values" in report.warnings[0]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
def test_dtype_rounds_all_matrices_when_asked(tmp_path, dtype):
    dense = save_llama(tmp_path / "dense", dtype=torch.float32)
    report = convert_checkpoint(dense, tmp_path / "out", dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert report.warnings == []
    assert report.rounded_values > 0
    before, after = load_all(dense), load_all(tmp_path / "out")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(after[name], before[name].to(wanted))
    assert after["model.norm.weight"].dtype == torch.float32
    weight = unpack(after, "model.layers.0.mlp.up_proj", (200, 128), wanted)
    assert torch.equal(weight, before["model.layers.0.mlp.up_proj.weight"].to(wanted))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == config["quantization_config"]["dtype"] == report.dtype


def test_a_value_too_large_for_float16(llama, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(llama, lambda tensors: tensors[name][0, :2].fill_(1e20))
    with pytest.raises(CheckpointError, match=rf"{name}.*2 of its values.*bfloat16"):
        convert_checkpoint(llama, tmp_path / "out", dtype="float16")


@pytest.mark.parametrize("dtype", ["float32", "int8", "nonsense", torch.float64])
def test_dtypes_that_cannot_be_packed(llama, tmp_path, dtype):
    with pytest.raises(fs.FormatError, match="dtype must be float16 or bfloat16"):
        convert_checkpoint(llama, tmp_path / "out", dtype=dtype)


def test_two_dtypes_in_one_model(llama, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(llama, lambda tensors: tensors.update({name: tensors[name].half()}))
    with pytest.raises(CheckpointError, match=r"up_proj.*float16.*one dtype.*--dtype"):
        convert_checkpoint(llama, tmp_path / "out")
    convert_checkpoint(llama, tmp_path / "out", dtype="bfloat16")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_weights_of_other_dtypes_are_refused(llama, tmp_path, dtype):
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(llama, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=r"up_proj' \[200, 128\].*--ignore"):
        convert_checkpoint(llama, tmp_path / "out")
    # as the message says
    convert_checkpoint(llama, tmp_path / "out", ignore=["lm_head", name.removesuffix(".weight")])
    assert assert_same_model(llama, tmp_path / "out") == 13


def test_quantized_and_packed_sources_are_refused(llama, tmp_path):
    convert_checkpoint(llama, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"packed already.*tiled_bitmap.*flashsparse inspect"):
        convert_checkpoint(tmp_path / "out", tmp_path / "again")
    edit_config(llama, quantization_config={"quant_method": "gptq"})
    with pytest.raises(CheckpointError, match="quantized already.*'gptq'"):
        convert_checkpoint(llama, tmp_path / "again")


def test_a_format_or_option_that_there_is_not(llama, tmp_path):
    with pytest.raises(fs.FormatError, match="unknown format 'zip'.*tiled_bitmap"):
        convert_checkpoint(llama, tmp_path / "out", format="zip")
    with pytest.raises(fs.FormatError, match="tiled_bitmap has no option 'n'"):
        convert_checkpoint(llama, tmp_path / "out", options={"n": 2})


class TestOutput:
    def test_is_never_overwritten_unasked(self, llama, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        (out / "mine.txt").write_text("precious")
        with pytest.raises(CheckpointError, match="not empty.*--overwrite"):
            convert_checkpoint(llama, out)
        with pytest.raises(CheckpointError, match="not a model directory"):
            convert_checkpoint(llama, out, overwrite=True)
        assert (out / "mine.txt").read_text() == "precious"
        assert {path.name for path in tmp_path.iterdir()} == {"dense", "out"}

    def test_replaces_a_model_when_asked(self, llama, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(llama, out)
        convert_checkpoint(llama, out, overwrite=True)
        assert assert_same_model(llama, out) == 14
        assert not (out / "optimizer.pt").exists()
        assert {path.name for path in tmp_path.iterdir()} == {"dense", "out"}

    def test_a_failed_replacement_leaves_the_old_model(self, llama, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(llama, out)
        with pytest.raises(CheckpointError):
            convert_checkpoint(llama, out, overwrite=True, ignore=["model", "lm_head"])
        assert (out / "model.safetensors").read_bytes() == (
            llama / "model.safetensors"
        ).read_bytes()

    def test_may_be_an_empty_directory_in_a_new_place(self, llama, tmp_path):
        (tmp_path / "empty").mkdir()
        for out in (tmp_path / "empty", tmp_path / "new" / "deep"):
            convert_checkpoint(llama, out)
            assert assert_same_model(llama, out) == 14

    def test_may_not_be_a_file_or_the_source(self, llama, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="not a directory"):
            convert_checkpoint(llama, tmp_path / "file")
        for out in (llama, tmp_path, llama / ".." / "dense"):
            with pytest.raises(CheckpointError, match="would replace the source"):
                convert_checkpoint(llama, out, overwrite=True)
        assert (llama / "config.json").exists()


@pytest.mark.parametrize(
    "victim", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight_packed"]
)
def test_damage_on_the_way_to_disk_is_found(llama, tmp_path, monkeypatch, victim):
    class Damaging(converter_module.ShardWriter):
        def add(self, name, dtype, shape, parts, checksum=None):
            parts = [part.clone() for part in parts]
            if name == victim:
                data = parts[-1].view(torch.uint8).view(-1)
                data[len(data) // 8 * 4 + 3] ^= 1  # in the middle, the exponent of a value
            super().add(name, dtype, shape, parts, checksum)

    monkeypatch.setattr(converter_module, "ShardWriter", Damaging)
    with pytest.raises(ValueError, match="does not read back"):
        convert_checkpoint(llama, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_progress_reaches_the_end_and_never_turns_back(sharded, tmp_path):
    seen = []
    convert_checkpoint(sharded, tmp_path / "out", on_progress=lambda *news: seen.append(news))
    done = [news[0] for news in seen]
    assert done == sorted(done)
    assert {news[1] for news in seen} == {done[-1]}
    assert len(seen) > 2 * 14


def test_report_is_json(llama, tmp_path):
    report = convert_checkpoint(llama, tmp_path / "out")
    data = json.loads(json.dumps(report.to_dict()))
    assert data["bytes_source"] == sum(t.nbytes for t in load_all(llama).values())
    assert data["bytes_out"] == sum(t.nbytes for t in load_all(tmp_path / "out").values())
    first = data["layers"][0]
    weight = load_all(llama)["model.layers.0.self_attn.q_proj.weight"]
    assert first == {
        "name": "model.layers.0.self_attn.q_proj",
        "kind": "q_proj",
        "shape": [128, 128],
        "sparsity": pytest.approx(float((weight == 0).float().mean())),
        "bytes_dense": 128 * 128 * 2,
        "bytes_packed": fs.pack(weight).nbytes,
        "others": {},
        "error": None,
        "reason": None,
        "scheme": "tiled_bitmap",
        "bytes_alike": 128 * 128 * 2,
        "packed": True,
    }


def test_codes_are_told_of_and_checked(llama, tmp_path, monkeypatch):
    options = {"n": 4, "m": 4, "values": "int4", "group": 32}
    out = tmp_path / "out"
    report = convert_checkpoint(llama, out, format="nm_vector", options=options)
    names = {layer.name for layer in report.inexact}
    assert names == {layer.name for layer in report.packed} and names
    assert all(0.01 < (layer.error or 0) < 0.2 for layer in report.inexact)
    assert report.inexact[0].name in (report.rounding or "")
    assert "were rounded to codes" in (out / "README.md").read_text()
    weight = load_all(llama)["model.layers.0.self_attn.q_proj.weight"]
    layer = next(each for each in report.layers if each.name.endswith("layers.0.self_attn.q_proj"))
    rounded = fs.pack(weight, "nm_vector", options).unpack()
    off = (rounded.double() - weight.double()).norm() / weight.double().norm()
    assert layer.error == pytest.approx(float(off))

    monkeypatch.setattr(NMVector, "rounded", lambda self, weight, packed: weight)
    with pytest.raises(CheckpointError, match="does not read back"):
        convert_checkpoint(llama, tmp_path / "other", format="nm_vector", options=options)


def test_model_card(llama, tmp_path):
    report = convert_checkpoint(llama, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "example/tiny")
    assert card.data.language == ["en"]
    assert "tiled_bitmap" in card.data.tags
    for words in (
        f"{report.sparsity:.1%}",
        "| q_proj | 2 of 2 | 128 x 128 |",
        "| lm_head | 0 of 1 |",
        "AutoModelForCausalLM.from_pretrained",
        "vllm serve",
        fs.__version__,
    ):
        assert words in card.text


@pytest.mark.parametrize(
    "text", ["no metadata", "---\n[broken: yaml\n---\n", "---\nlicense: {a: 1}\n---\n", "\udcff"]
)
def test_a_strange_card_in_the_source(llama, tmp_path, text):
    (llama / "README.md").write_bytes(text.encode(errors="surrogateescape"))
    convert_checkpoint(llama, tmp_path / "out")
    assert ModelCard.load(tmp_path / "out" / "README.md").data.library_name == "transformers"


def test_mixture_of_experts_says_what_stays_dense(tmp_path):
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=64,
    )
    model = MixtralForCausalLM(config).bfloat16()
    for parameter in model.parameters():
        if parameter.dim() < 3:
            parameter.data[torch.rand(parameter.shape) < 0.8] = 0
    model.save_pretrained(tmp_path / "dense")
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "out")
    assert assert_same_model(tmp_path / "dense", tmp_path / "out") == 4
    (warning,) = [warning for warning in report.warnings if "experts" in warning]
    assert (
        "weights of experts stay as they are (49.2 kB, 6 tensors, for example model.layers"
        in warning
    )
