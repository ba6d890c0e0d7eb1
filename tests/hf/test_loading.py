# SPDX-License-Identifier: Apache-2.0
"""from_pretrained and save_pretrained: dtypes, placement, and what config.json says."""

import logging
import shutil

import pytest
import tiny
import torch
from checkpoints import unalign
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import flashsparse_plugin as fs
from flashsparse_plugin.formats.unstructured.interleaved_bitmap import InterleavedBitmap
from flashsparse_plugin.integrations import hf

pytestmark = pytest.mark.oldest_transformers


def kinds(llama):
    """Both ways to a packed model: (path, arguments of from_pretrained)."""
    return {
        "packed": (llama.packed, {}),
        "while-loading": (llama.masked, {"quantization_config": fs.FlashSparseConfig()}),
    }


both_ways = pytest.mark.parametrize("kind", ["packed", "while-loading"])


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_that_of_activations_only(kind, dtype, llama):
    path, kwargs = kinds(llama)[kind]
    if kind == "while-loading":
        kwargs = {"quantization_config": fs.FlashSparseConfig(dtype="bfloat16")}
    model = tiny.load(path, dtype, **kwargs)
    assert model.dtype == dtype
    dense = tiny.load(llama.masked, torch.bfloat16)
    for name, layer in tiny.sparse_layers(model).items():
        assert layer.scheme.dtype == torch.bfloat16
        assert layer.bias.dtype == dtype
        assert torch.equal(layer.weight, dense.get_submodule(name).weight)
    reference = tiny.load(llama.masked, dtype)
    exact = tiny.logits(tiny.load(llama.masked, torch.float64))
    error, own = ((tiny.logits(m) - exact).abs().max() for m in (model, reference))
    # fp16 rounds the masked model's weights as well, which the packed model does not.
    assert error <= 4 * own


@both_ways
def test_the_weight_is_in_memory_once_and_in_runtime_form(kind, llama):
    path, kwargs = kinds(llama)[kind]
    for layer in tiny.sparse_layers(tiny.load(path, **kwargs)).values():
        assert layer.held.format is InterleavedBitmap()
        assert {name for name, _ in layer.named_parameters()} == {
            "values",
            "masks",
            "panel_offsets",
            "bias",
        }


@both_ways
@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_device_maps(kind, device_map, llama, wanted):
    path, kwargs = kinds(llama)[kind]
    model = tiny.load(path, device_map=device_map, **kwargs)
    assert torch.equal(tiny.generate(model), wanted)


@both_ways
def test_disk_offload(kind, llama, wanted, tmp_path):
    """An offloaded layer stays in its storage form, runs from it, and is saved from it."""
    path, kwargs = kinds(llama)[kind]
    model = tiny.load(
        path, device_map=tiny.HERE_AND_ON_DISK, offload_folder=str(tmp_path / "offload"), **kwargs
    )
    for name, layer in tiny.sparse_layers(model).items():
        away = name.startswith("model.layers.1.")
        assert (layer.held == layer.scheme) == away
        assert layer.packed.device.type == ("meta" if away else "cpu")
    assert torch.equal(tiny.generate(model), wanted)

    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    saved = tiny.packed_tensors(tiny.load(tmp_path / "saved"))
    original = tiny.packed_tensors(tiny.load(llama.packed))
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[key], original[key]) for key in saved)
    with pytest.raises(ValueError, match=r"model\.layers\.1.*offloaded.*device_map"):
        model.dequantize()


@both_ways
def test_auto_device_map_counts_packed_bytes(kind, llama, wanted, tmp_path):
    path, kwargs = kinds(llama)[kind]
    model = tiny.load(
        path,
        device_map="auto",
        max_memory={"cpu": "190KB", "disk": "1GB"},
        offload_folder=str(tmp_path),
        **kwargs,
    )
    assert set(map(str, model.hf_device_map.values())) == {"cpu", "disk"}
    assert torch.equal(tiny.generate(model), wanted)


def test_cpu_offload(llama, wanted, monkeypatch):
    """Weights held aside and brought in layer by layer, as when a GPU runs a part of the model."""
    from accelerate import cpu_offload
    from transformers import modeling_utils

    def offload(model, *args):
        cpu_offload(model, execution_device=torch.device("cpu"))

    monkeypatch.setattr(modeling_utils, "accelerate_dispatch", offload)
    # transformers dispatches where a map has two values, which these are, of one meaning.
    places = {**dict.fromkeys(tiny.HERE_AND_ON_DISK, "cpu"), "lm_head": torch.device("cpu")}
    model = tiny.load(llama.packed, device_map=places)
    for layer in tiny.sparse_layers(model).values():
        assert layer.held == layer.scheme
        assert layer.packed.device.type == "meta"
    assert torch.equal(tiny.generate(model), wanted)


def test_dequantize_beside_offloaded_dense_layers(llama, wanted, tmp_path):
    """Layers with accelerate's hooks keep them."""
    places = {**dict.fromkeys(tiny.HERE_AND_ON_DISK, "cpu"), "lm_head": "disk"}
    model = tiny.load(llama.packed, device_map=places, offload_folder=str(tmp_path))
    assert torch.equal(tiny.generate(model.dequantize()), wanted)


def test_config_json_holds_the_configuration(llama, tmp_path):
    config = fs.FlashSparseConfig(pruning="magnitude", sparsity=0.6, ignore=["re:.*down_proj"])
    given = config.model_copy(deep=True)
    model = tiny.load(llama.dense, quantization_config=config)
    assert config == given  # loading does not write into the user's object
    expected = {
        "quant_method": "flashsparse",
        "format": "tiled_bitmap",
        "format_version": 1,
        "dtype": "bfloat16",
        "sparsity": 0.6,
        "pruning": "magnitude",
        "ignore": ["re:.*down_proj", "lm_head"],
    }
    assert isinstance(model.config.quantization_config, fs.FlashSparseConfig)
    assert model.config.quantization_config.to_dict() == expected
    model.save_pretrained(tmp_path)
    assert tiny.quantization_config(tmp_path) == expected
    assert AutoConfig.from_pretrained(tmp_path).quantization_config == expected
    assert torch.equal(tiny.generate(tiny.load(tmp_path)), tiny.generate(model))


def test_a_dictionary_will_do(llama, wanted):
    model = tiny.load(llama.masked, quantization_config={"quant_method": "flashsparse"})
    assert tiny.sparse_layers(model)
    assert torch.equal(tiny.generate(model), wanted)


@both_ways
def test_a_new_head_on_a_packed_body(kind, llama):
    """A head that the file does not have is transformers' to make: packed layers only are ours."""
    path, kwargs = kinds(llama)[kind]
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=3, **kwargs)
    assert type(model.score) is torch.nn.Linear
    assert tiny.sparse_layers(model).keys() == tiny.sparse_layers(tiny.load(llama.packed)).keys()


def test_from_config_makes_a_dense_random_model(llama):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(llama.packed))
    assert not tiny.sparse_layers(model)


def test_register_again_changes_nothing():
    from transformers.quantizers import auto

    hf.register()
    before = dict(auto.AUTO_QUANTIZER_MAPPING), auto.LOADING_ATTRIBUTES_CONFIG_TYPES
    hf.register()
    assert (dict(auto.AUTO_QUANTIZER_MAPPING), auto.LOADING_ATTRIBUTES_CONFIG_TYPES) == before
    assert auto.LOADING_ATTRIBUTES_CONFIG_TYPES.count(fs.FlashSparseConfig) == 1


@pytest.mark.parametrize(
    ("ignore", "left_dense"),
    [
        (["lm_head"], {"lm_head"}),
        (
            ["down_proj"],
            {"lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"},
        ),
        (["model.layers.0.mlp.down_proj"], {"lm_head", "model.layers.0.mlp.down_proj"}),
        (
            [r"re:.*layers\.1\.mlp"],
            {"lm_head"} | {f"model.layers.1.mlp.{n}_proj" for n in ("gate", "up", "down")},
        ),
        ([], set()),
    ],
)
def test_ignore(ignore, left_dense, llama, tmp_path):
    model = tiny.load(llama.masked, quantization_config=fs.FlashSparseConfig(ignore=ignore))
    dense = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert dense == left_dense
    model.save_pretrained(tmp_path)
    again = tiny.load(tmp_path)
    assert tiny.sparse_layers(again).keys() == tiny.sparse_layers(model).keys()
    assert torch.equal(tiny.generate(again), tiny.generate(model))


def test_layers_is_stronger_than_ignore(llama):
    config = fs.FlashSparseConfig(
        layers={
            "lm_head": {"format": "tiled_bitmap"},
            "model.layers.0.self_attn.q_proj": {"format": "dense", "reason": "to see"},
        }
    )
    layers = tiny.sparse_layers(tiny.load(llama.masked, quantization_config=config))
    assert "lm_head" in layers
    assert "model.layers.0.self_attn.q_proj" not in layers
    assert "model.layers.1.self_attn.q_proj" in layers


def test_a_tied_head_is_never_packed(checkpoints):
    paths = checkpoints("llama-tied")
    config = fs.FlashSparseConfig(ignore=[])
    model = tiny.load(paths.masked, quantization_config=config)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_mixed_checkpoint_loads_as_its_header_says(packed_copy, llama, wanted):
    name, file = "model.layers.1.mlp.up_proj", packed_copy / "model.safetensors"
    state = load_file(file)
    state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
    dense = load_file(llama.masked / "model.safetensors")
    state |= {key: dense[key] for key in (f"{name}.weight", f"{name}.bias")}
    save_file(state, file, {"format": "pt"})
    model = tiny.load(packed_copy)
    assert name not in tiny.sparse_layers(model)
    assert torch.equal(tiny.generate(model), wanted)


def test_rounding_is_said_once(llama, tmp_path, caplog):
    dense = tiny.load(llama.dense)
    with torch.no_grad():
        dense.model.layers[0].mlp.up_proj.weight.mul_(1.001)
    dense.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING, logger="flashsparse_plugin"):
        tiny.load(tmp_path, quantization_config=fs.FlashSparseConfig())
    messages = [r.getMessage() for r in caplog.records if "rounded" in r.getMessage()]
    text = (
        "flashsparse: the values of 1 layers were rounded to bfloat16 (model.layers.0.mlp.up_proj"
    )
    assert [message[: len(text)] for message in messages] == [text]


def test_values_of_a_bfloat16_file_survive_a_float16_model(llama):
    """transformers would cast to float16 on the way: bits of small values would be lost."""
    config = fs.FlashSparseConfig(dtype="bfloat16")
    model = tiny.load(llama.masked, torch.float16, quantization_config=config)
    dense = tiny.load(llama.masked, torch.bfloat16)
    for name, layer in tiny.sparse_layers(model).items():
        assert torch.equal(layer.weight, dense.get_submodule(name).weight)


def test_a_checkpoint_without_zeros_is_noticed(llama, caplog):
    with caplog.at_level(logging.WARNING, logger="flashsparse_plugin"):
        tiny.load(llama.dense, quantization_config=fs.FlashSparseConfig())
    assert any("is this checkpoint pruned?" in r.getMessage() for r in caplog.records)


def test_one_line_says_what_was_packed(llama, caplog):
    with caplog.at_level(logging.INFO, logger="flashsparse_plugin"):
        tiny.load(llama.packed)
    (line,) = [r.getMessage() for r in caplog.records if "packed as" in r.getMessage()]
    assert line.startswith("flashsparse: 14 layers packed as tiled_bitmap")


def test_auto_chooses_for_each_layer_and_says_so(llama, tmp_path, monkeypatch, caplog):
    """What is saved names the formats that were chosen, and loads without any option."""
    from flashsparse_plugin.dataflow.choice import Choice
    from flashsparse_plugin.integrations.hf import conversion

    def choose(pattern, dtype, target):
        assert (target.gpu, target.batch) == (None, 3)
        formats = {1: "tiled_csl", 2: "tiled_bitmap"}
        name = formats.get(pattern.shape[1] // pattern.shape[0])  # wide layers, and square ones
        return Choice(name and fs.get_format(name).scheme(dtype), "so")

    monkeypatch.setattr(conversion, "choose", choose)
    config = fs.FlashSparseConfig(format="auto", batch=3)
    with caplog.at_level(logging.INFO, logger="flashsparse_plugin"):
        model = tiny.load(llama.masked, quantization_config=config)
    assert config.format == "auto"  # the user's object stays as it was
    packed = tiny.sparse_layers(model)
    assert {layer.scheme.format.name for layer in packed.values()} >= {"tiled_csl"}
    assert 0 < len(packed) < 14
    assert any("auto: " in r.getMessage() and "dense, so" in r.getMessage() for r in caplog.records)
    dense = tiny.logits(tiny.load(llama.masked))
    assert torch.allclose(tiny.logits(model), dense, rtol=0.02, atol=0.02)
    model.save_pretrained(tmp_path)
    again = tiny.load(tmp_path)
    assert torch.equal(tiny.logits(again), tiny.logits(model))
    schemes = {name: layer.scheme for name, layer in packed.items()}
    assert {name: layer.scheme for name, layer in tiny.sparse_layers(again).items()} == schemes
    assert again.config.quantization_config.format in ("tiled_csl", "tiled_bitmap")


def test_auto_has_one_decision_for_layers_that_engines_merge(llama, tmp_path, monkeypatch, caplog):
    """q with many zeros and k with none: vLLM, which merges them, refuses one packed, one dense."""
    from flashsparse_plugin.checkpoint.read.shapes import merged_names
    from flashsparse_plugin.dataflow.choice import Pattern
    from flashsparse_plugin.integrations.hf import conversion

    shutil.copytree(llama.masked, tmp_path / "uneven")
    path = tmp_path / "uneven" / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if "k_proj" in name or "up_proj" in name:
            weights[name] = torch.ones_like(weight)
    save_file(weights, path, metadata={"format": "pt"})
    chosen_for, inner = [], conversion.choose

    def choose(pattern, dtype, target):
        chosen_for.append(pattern)
        return inner(pattern, dtype, target)

    monkeypatch.setattr(conversion, "choose", choose)
    with caplog.at_level(logging.INFO, logger="flashsparse_plugin"):
        model = tiny.load(path.parent, quantization_config=fs.FlashSparseConfig(format="auto"))
    packed = tiny.sparse_layers(model)
    schemes = {
        name: packed[name].scheme if name in packed else None
        for name in weights_of_linears(weights)
    }
    groups = merged_names(list(schemes))
    assert {len(names) for names in groups} == {1, 2, 3}
    assert all(len({schemes[name] for name in names}) == 1 for names in groups)
    assert any(schemes.values())
    # As one weight: the rows of all, and the share that all keep together.
    parts = [Pattern.of(weights[f"{name}.weight"]) for name in max(groups, key=len)]
    assert Pattern.joined(parts) in chosen_for and len(chosen_for) == len(groups)
    told = [r.getMessage() for r in caplog.records if "auto: " in r.getMessage()]
    assert any("q_proj" in line and "k_proj" in line and "v_proj" in line for line in told)


def weights_of_linears(weights):
    """Names of the layers of a llama that may be packed."""
    names = [name.removesuffix(".weight") for name in weights if name.endswith("_proj.weight")]
    return [name for name in names if "layers" in name]


def test_a_packed_checkpoint_names_its_formats(llama, tmp_path):
    model = tiny.load(llama.packed)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.quantization_config["format"] = "auto"
    config.save_pretrained(tmp_path)
    with pytest.raises(fs.FormatError, match='format "auto".*a packed one names its formats'):
        tiny.load(tmp_path)


PATTERN = {"n": 2, "m": 4}


@pytest.mark.parametrize("places", [None, tiny.HERE_AND_ON_DISK], ids=["here", "on-disk"])
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("tiled_bitmap", {}),
        ("tiled_bitmap", {"values": "int8"}),
        ("tiled_csl", {}),
        ("nm_vector", PATTERN),
        ("nm_vector", PATTERN | {"values": "fp8_e4m3"}),
        ("nm_vector", PATTERN | {"values": "int4", "group": 32}),
    ],
    ids=["bitmap", "bitmap-int8", "csl", "nm", "nm-fp8", "nm-int4"],
)
def test_a_header_that_is_not_padded_is_as_good(format, options, places, llama, tmp_path):
    pruned = {"pruning": "magnitude"} if format == "nm_vector" else {}
    config = fs.FlashSparseConfig(format=format, options=options, dtype="bfloat16", **pruned)
    packed = tmp_path / "packed"
    tiny.load(llama.masked, torch.bfloat16, quantization_config=config).save_pretrained(packed)
    on_disk = {"device_map": places, "offload_folder": str(tmp_path / "off")} if places else {}
    padded = tiny.logits(tiny.load(packed, torch.bfloat16, **on_disk))
    assert torch.equal(tiny.logits(tiny.load(unalign(packed), torch.bfloat16, **on_disk)), padded)
