# SPDX-License-Identifier: Apache-2.0
"""Damaged files and impossible wishes: an error that names the layer, never random weights."""

import json
import os
import shutil
import struct
import threading
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import flashsparse_plugin as fs
from flashsparse_plugin.integrations.hf import conversion
from flashsparse_plugin.integrations.hf.quantizer import FlashSparseQuantizer

pytestmark = pytest.mark.oldest_transformers

LAYER = "model.layers.1.mlp.up_proj"
TWIN = "model.layers.0.mlp.up_proj"


def damage(path, change):
    file = path / "model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file, {"format": "pt"})


def drop_words(state):
    del state[f"{LAYER}.weight_packed"]


def drop_offsets(state):
    del state[f"{LAYER}.unit_offsets"]


def drop_both(state):
    drop_words(state)
    drop_offsets(state)


def drop_bias(state):
    del state[f"{LAYER}.bias"]


def drop_all(state):
    drop_both(state)
    drop_bias(state)


def both_packed_and_dense(state):
    state[f"{LAYER}.weight"] = torch.zeros(136, 64, dtype=torch.bfloat16)


def words_of_another_dtype(state):
    state[f"{LAYER}.weight_packed"] = state[f"{LAYER}.weight_packed"].to(torch.float32)


def offsets_of_another_dtype(state):
    state[f"{LAYER}.unit_offsets"] = state[f"{LAYER}.unit_offsets"].to(torch.int64)


def words_cut_short(state):
    state[f"{LAYER}.weight_packed"] = state[f"{LAYER}.weight_packed"][:-4].clone()


def offsets_beyond_the_end(state):
    state[f"{LAYER}.unit_offsets"][-1] += 4


def offsets_going_back(state):
    state[f"{LAYER}.unit_offsets"][0] = 8


def location_outside_its_tile(state):
    state[f"{LAYER}.weight_packed"][0] |= 0xFFFF


def one_dimension_more(state):
    state[f"{LAYER}.weight_packed"] = state[f"{LAYER}.weight_packed"][None].clone()


def words_and_offsets_swapped(state):
    words, offsets = f"{LAYER}.weight_packed", f"{LAYER}.unit_offsets"
    state[words], state[offsets] = state[offsets], state[words]


def another_layers_tensors(state):
    for name in ("weight_packed", "unit_offsets"):
        other = f"model.layers.1.mlp.down_proj.{name}"
        state[f"{LAYER}.{name}"], state[other] = state[other], state[f"{LAYER}.{name}"]


DAMAGES = [
    drop_words,
    drop_offsets,
    drop_both,
    drop_bias,
    drop_all,
    both_packed_and_dense,
    words_of_another_dtype,
    offsets_of_another_dtype,
    words_cut_short,
    offsets_beyond_the_end,
    offsets_going_back,
    location_outside_its_tile,
    one_dimension_more,
    words_and_offsets_swapped,
    another_layers_tensors,
]


@pytest.mark.parametrize("change", DAMAGES, ids=lambda change: change.__name__)
def test_damage_is_an_error_that_names_the_layer(change, packed_copy):
    damage(packed_copy, change)
    with pytest.raises(fs.FormatError, match=r"model\.layers\.1\.mlp\.(up|down)_proj"):
        tiny.load(packed_copy)


@pytest.mark.parametrize("change", [offsets_beyond_the_end, location_outside_its_tile])
def test_damage_on_disk_is_found_in_offloaded_layers_too(change, packed_copy, tmp_path):
    damage(packed_copy, change)
    with pytest.raises(fs.FormatError, match=LAYER):
        tiny.load(
            packed_copy, device_map=tiny.HERE_AND_ON_DISK, offload_folder=str(tmp_path / "off")
        )


def test_truncated_file(packed_copy):
    file = packed_copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(fs.FormatError, match="model.safetensors is not a whole safetensors file"):
        tiny.load(packed_copy)


def test_header_that_promises_more_than_the_file_holds(packed_copy):
    """No memory is reserved for a size that a header only claims."""
    file = packed_copy / "model.safetensors"
    raw = file.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header[f"{LAYER}.weight_packed"]["shape"] = [2**40]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])
    with pytest.raises(fs.FormatError, match="not a whole safetensors file"):
        tiny.load(packed_copy)


def shard(path, name):
    """Makes an index that says that `name` holds all the tensors of a model."""
    weights = path / "model.safetensors"
    names = list(load_file(weights))
    weights.rename(path.parent / "weights.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, name)}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def link_out(path):
    weights = path / "model.safetensors"
    weights.rename(path.parent / "weights.safetensors")
    weights.symlink_to(path.parent / "weights.safetensors")


def point_out(path):
    shard(path, "../weights.safetensors")


def point_to_a_fifo(path):
    shard(path, "fifo.safetensors")
    os.mkfifo(path / "fifo.safetensors")


def a_tensor_twice(path):
    shard(path, "model-1.safetensors")
    shutil.copy(path.parent / "weights.safetensors", path / "model-1.safetensors")
    shutil.copy(path.parent / "weights.safetensors", path / "model-2.safetensors")
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "model-2.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("settings", [{}, {"quantization_config": fs.FlashSparseConfig()}])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        (link_out, "is a link that leads out of the model directory"),
        (point_out, "is outside of the model directory"),
        (point_to_a_fifo, "is missing in .* or no regular file"),
        (a_tensor_twice, "is in model-1.safetensors and in model-2.safetensors"),
    ],
)
def test_files_are_read_as_strictly_as_by_convert(llama, tmp_path, settings, place, message):
    source = llama.dense if settings else llama.packed
    path = Path(shutil.copytree(source, tmp_path / "copy"))
    place(path)
    with pytest.raises(fs.FormatError, match=message):
        tiny.load(path, **settings)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("settings", [{}, {"quantization_config": fs.FlashSparseConfig()}])
@pytest.mark.parametrize("subfolder", ["", "copy"])
def test_a_fifo_does_not_keep_anybody_waiting(llama, tmp_path, settings, linked, subfolder):
    """transformers opens the first shard for its dtype before it asks for anything else."""
    path = Path(shutil.copytree(llama.dense if settings else llama.packed, tmp_path / "copy"))
    shard(path, "first.safetensors")
    fifo = path / ("there" if linked else "first.safetensors")
    os.mkfifo(fifo)
    if linked:
        (path / "first.safetensors").symlink_to("there")
    config = json.loads((path / "config.json").read_text())
    del config["dtype"]
    (path / "config.json").write_text(json.dumps(config))
    # Who waits for the other end gets an empty file at last, which is another error.
    release = threading.Timer(30, lambda: os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)))
    release.daemon = True
    release.start()
    with pytest.raises(fs.FormatError, match=r"first\.safetensors.*or no regular file"):
        AutoModelForCausalLM.from_pretrained(
            tmp_path if subfolder else path, dtype="auto", subfolder=subfolder, **settings
        )
    release.cancel()


def edit_config(path, **changes):
    file = path / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] |= changes
    file.write_text(json.dumps(config))


def test_newer_format_version(packed_copy):
    edit_config(packed_copy, format_version=99)
    with pytest.raises(ValueError, match="version 99.*pip install"):
        tiny.load(packed_copy)


def test_unknown_dtype_of_values(packed_copy):
    edit_config(packed_copy, dtype=None)
    with pytest.raises(fs.FormatError, match="which dtype its values"):
        tiny.load(packed_copy)


def test_pickles_are_not_read(packed_copy):
    state = load_file(packed_copy / "model.safetensors")
    (packed_copy / "model.safetensors").unlink()
    torch.save(state, packed_copy / "pytorch_model.bin")
    with pytest.raises(fs.FormatError, match="pickled checkpoints are not read"):
        tiny.load(packed_copy)


def test_state_dict_instead_of_files(llama):
    model = tiny.load(llama.packed)
    with pytest.raises(fs.FormatError, match="from its files"):
        type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict())


def test_another_models_checkpoint(packed_copy):
    """A packed embedding: the name exists in the model, as something else."""

    def rename(state):
        for name in ("weight_packed", "unit_offsets"):
            state[f"model.embed_tokens.{name}"] = state[f"{LAYER}.{name}"].clone()

    damage(packed_copy, rename)
    with pytest.raises(fs.FormatError, match=r"'model\.embed_tokens'.*Embedding"):
        tiny.load(packed_copy)


def test_what_fails_while_packing_surfaces(llama, monkeypatch):
    def broken(weight, target, sparsity, name):
        if name == TWIN:
            raise RuntimeError("out of luck")
        return weight

    monkeypatch.setattr(conversion, "prune_for", broken)
    config = fs.FlashSparseConfig(pruning="magnitude", sparsity=0.5)
    with pytest.raises(RuntimeError, match="out of luck"):
        tiny.load(llama.dense, quantization_config=config)


def test_nan_cannot_be_ranked(llama, tmp_path):
    model = tiny.load(llama.dense, torch.bfloat16)
    with torch.no_grad():
        model.get_submodule(LAYER).weight[3, 5] = float("nan")
    model.save_pretrained(tmp_path)
    config = fs.FlashSparseConfig(pruning="magnitude", sparsity=0.5)
    with pytest.raises(ValueError, match=LAYER):
        tiny.load(tmp_path, quantization_config=config)


def test_values_too_large_for_float16(llama, tmp_path):
    model = tiny.load(llama.dense)
    with torch.no_grad():
        model.get_submodule(LAYER).weight[3, 5] = 1e6
    model.save_pretrained(tmp_path)
    with pytest.raises(fs.FormatError, match=rf"{LAYER}.*1e\+06.*bfloat16"):
        tiny.load(tmp_path, quantization_config=fs.FlashSparseConfig(dtype="float16"))


def test_dequantize_of_a_dense_checkpoint(llama):
    with pytest.raises(ValueError, match="this one is dense"):
        tiny.load(llama.dense, quantization_config=fs.FlashSparseConfig(dequantize=True))


def test_tensor_parallelism(llama):
    from transformers.distributed import DistributedConfig
    from transformers.quantizers.auto import get_hf_quantizer

    config = AutoConfig.from_pretrained(llama.packed)
    quantizer, *_ = get_hf_quantizer(config, None, None, True, {})
    assert isinstance(quantizer, FlashSparseQuantizer)
    for parallel in (DistributedConfig(tp_size=2), DistributedConfig(tp_plan="auto")):
        config = AutoConfig.from_pretrained(llama.packed)
        config.distributed_config = parallel
        with pytest.raises(ValueError, match='tensor parallelism.*device_map="auto"'):
            get_hf_quantizer(config, None, None, True, {})  # as from_pretrained asks for it


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    config = AutoConfig.for_model(
        "mixtral",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=72,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def test_experts_stay_dense_beside_packed_attention_and_are_told(mixture, tmp_path, caplog):
    config = fs.FlashSparseConfig(pruning="magnitude", sparsity=0.5)
    model = tiny.load(mixture, quantization_config=config)
    assert (
        "weights of experts stay as they are (2 tensors, for example model.layers.0" in caplog.text
    )
    assert len(tiny.sparse_layers(model)) == 4
    caplog.clear()
    config = fs.FlashSparseConfig(ignore=["experts"], pruning="magnitude", sparsity=0.5)
    tiny.load(mixture, quantization_config=config)  # who says so is not told
    assert "weights of experts" not in caplog.text
    model.save_pretrained(tmp_path)
    again = tiny.load(tmp_path)
    assert tiny.sparse_layers(again).keys() == tiny.sparse_layers(model).keys()
    assert torch.equal(tiny.generate(again), tiny.generate(model))


def test_an_expert_that_is_packed_beside_dense_ones_is_refused(mixture, tmp_path):
    config = fs.FlashSparseConfig(ignore=["experts"])
    tiny.load(mixture, torch.bfloat16, quantization_config=config).save_pretrained(tmp_path)

    def pack_one(state):
        key = next(key for key in state if "experts.0" in key)
        packed = fs.pack(state.pop(key))
        for name, tensor in packed.tensors.items():
            state[f"{key.removesuffix('.weight')}.{name}"] = tensor

    damage(tmp_path, pack_one)
    with pytest.raises(fs.FormatError, match="packed or dense together"):
        tiny.load(tmp_path)


def without_method(config):
    del config["quantization_config"]


def foreign_method(config):
    # transformers warns of a method that it does not know, and loads the model without one.
    config["quantization_config"]["quant_method"] = "elsewhere"


@pytest.mark.parametrize("change", [without_method, foreign_method])
@pytest.mark.parametrize("load", ["plain", "while loading"])
def test_a_packed_checkpoint_that_does_not_say_so(change, load, packed_copy):
    """Not one layer would be loaded, and all of them be random."""
    file = packed_copy / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))
    more = {} if load == "plain" else {"quantization_config": fs.FlashSparseConfig()}
    with pytest.raises(ValueError, match=r"layer 'model\.layers.*is packed by flashsparse.*config"):
        tiny.load(packed_copy, **more)


@pytest.mark.parametrize("own", ["weight_packed", "unit_offsets"])
def test_half_of_a_layers_tensors_are_noticed_too(own, packed_copy):
    def halve(state):
        for key in [key for key in state if key.endswith(own)]:
            del state[key]

    damage(packed_copy, halve)
    with pytest.raises(fs.FormatError, match=f"layer 'model.*missing: {own}"):
        tiny.load(packed_copy)
    file = packed_copy / "config.json"
    config = json.loads(file.read_text())
    without_method(config)
    file.write_text(json.dumps(config))
    with pytest.raises(
        fs.FormatError, match=r"layer 'model.*packed by flashsparse, and its config"
    ):
        tiny.load(packed_copy)


@pytest.mark.parametrize("own", ["weight_packed", "unit_offsets"])
def test_half_of_a_layers_tensors_are_noticed_under_a_foreign_method(own, packed_copy):
    """compressed-tensors calls values as we do, and it alone is not asked what it misses."""
    edit_config(packed_copy, quant_method="elsewhere")
    damage(packed_copy, lambda state: [state.pop(key) for key in [*state] if key.endswith(own)])
    with pytest.raises(fs.FormatError, match="packed by flashsparse.*quant_method 'elsewhere'"):
        tiny.load(packed_copy)


def test_a_layer_in_two_files_is_noticed_where_another_method_is_named(packed_copy):
    weights = packed_copy / "model.safetensors"
    state = load_file(weights)
    weights.unlink()
    places = {key: f"model-{int(key.endswith('unit_offsets'))}.safetensors" for key in state}
    for place in set(places.values()):
        part = {key: tensor for key, tensor in state.items() if places[key] == place}
        save_file(part, packed_copy / place, {"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (packed_copy / "model.safetensors.index.json").write_text(json.dumps(index))
    edit_config(packed_copy, quant_method="elsewhere")
    with pytest.raises(fs.FormatError, match="packed by flashsparse.*quant_method 'elsewhere'"):
        tiny.load(packed_copy)


def test_a_packed_checkpoint_whose_layers_the_model_does_not_have(packed_copy):
    """Where nothing has to be packed, nothing would be missed."""
    damage(packed_copy, lambda state: rename_all(state, "model.layers.", "model.blocks."))
    edit_config(packed_copy, ignore=["model", "lm_head"])
    with pytest.raises(fs.FormatError, match=r"'model\.blocks\..*of the 14 packed layers is in a"):
        tiny.load(packed_copy)


def rename_all(state, old, new):
    for key in list(state):
        state[key.replace(old, new)] = state.pop(key)


@pytest.mark.parametrize("method", ["gptq", "awq", "torchao"])
def test_a_checkpoint_of_another_method_is_not_packed_while_it_is_loaded(method, llama, tmp_path):
    """transformers would ask for a configuration of the other method's class."""
    path = shutil.copytree(llama.dense, tmp_path / "quantized")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(fs.FormatError, match=f"{method}.*before it was quantized"):
        tiny.load(path, quantization_config=fs.FlashSparseConfig())
