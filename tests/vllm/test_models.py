# SPDX-License-Identifier: Apache-2.0
"""Tokens equal those of transformers on the masked dense model, in float32, for every kind of
model and every way to ask for sparse weights."""

import csv
import itertools
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import vllm_checkpoints as checkpoints
from checkpoints import edit_weights
from foreign_checkpoints import IDLE_SPARSITY, as_sparse_llama, quantize, rewrite
from safetensors.torch import load_file, save_file
from vllm_checkpoints import MAX_TOKENS, PROMPTS

from flashsparse_plugin.checkpoint import convert_checkpoint
from flashsparse_plugin.pruning import prune_weight

ARCHITECTURES = ["llama", "llama-tied", "mistral", "qwen3", "phi3", "glm4", "opt", "gpt_neox"]
ARCHITECTURES += ["bloom", "gpt2", "mixtral", "granitemoe"]
# Models of vLLM's own that reorder the rows of a fused weight; later releases run GPT-NeoX through
# the code of transformers, which does not.
REORDERED = {("bloom", "packed")}
if version("vllm") < "0.27":
    REORDERED |= {("gpt_neox", "packed")}
UNEVEN_LAYERS = 5
SPARSE, DENSE = "SparseLinearMethod", "UnquantizedLinearMethod"


def job(model, extra=None, lora=None, **options) -> dict:
    return (extra or {}) | {
        "model": str(model),
        "prompts": PROMPTS,
        "max_tokens": MAX_TOKENS,
        "options": options,
        "lora": lora and str(lora),
    }


def with_config(source, target, **quantization) -> str:
    """The same packed weights with another quantization_config."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).symlink_to(path)
    (target / "config.json").unlink()
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] |= quantization
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


def without_method(source, target) -> str:
    """The same packed weights with a config.json that does not know of them."""
    path = Path(with_config(source, target)) / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    return str(target)


def partly_dense(packed, dense, target) -> str:
    """A packed checkpoint in which one of the layers that vLLM merges is dense."""
    shutil.copytree(packed, target)
    path, name = target / "model.safetensors", "model.layers.0.self_attn.k_proj"
    tensors = {k: v for k, v in load_file(path).items() if not k.startswith(name)}
    tensors[f"{name}.weight"] = load_file(dense / "model.safetensors")[f"{name}.weight"]
    save_file(tensors, path, {"format": "pt"})
    return str(target)


def two_of_four(dense, target) -> Path:
    """The same weights, those of every linear layer pruned further to 2:4, in another Llama."""
    shutil.copytree(dense, target)

    def drop(tensors):
        for name in tensors:
            if name.endswith("_proj.weight"):
                tensors[name] = prune_weight(tensors[name], pattern=(2, 4))

    edit_weights(target, drop)
    return as_sparse_llama(target)


def masked(dense, target) -> str:
    """The same model as torch.nn.utils.prune leaves it, with values behind its zeros."""
    shutil.copytree(dense, target)

    def split(tensors):
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            weight = tensors.pop(name)
            tensors[f"{name}_mask"] = (weight != 0).to(weight.dtype)
            tensors[f"{name}_orig"] = weight.masked_fill(weight == 0, 0.5)

    edit_weights(target, split)
    return str(target)


def hostile(foreign, target) -> str:
    """A sparse checkpoint of another tool whose mask has a bit more than there are values."""
    shutil.copytree(foreign, target)

    def flip(tensors):
        tensors["model.layers.1.mlp.up_proj.bitmask"][7, 3] ^= 16

    edit_weights(target, flip)
    return str(target)


def adapter(folder, model) -> str:
    """A LoRA adapter that changes the output, in peft's format."""
    generator = torch.Generator().manual_seed(1)
    config = json.loads((model / "config.json").read_text())
    tensors, targets = {}, {"q_proj": 128, "v_proj": 64, "o_proj": 128, "gate_proj": 160}
    for layer in range(config["num_hidden_layers"]):
        for name, out in targets.items():
            kind = "mlp" if name == "gate_proj" else "self_attn"
            prefix = f"base_model.model.model.layers.{layer}.{kind}.{name}"
            for part, shape in (("A", (8, 128)), ("B", (out, 8))):
                values = 0.1 * torch.randn(shape, generator=generator)
                tensors[f"{prefix}.lora_{part}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": list(targets)}
    settings |= {"task_type": "CAUSAL_LM", "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Per architecture the dense and the packed directory."""
    folder = tmp_path_factory.mktemp("models")
    made = {name: checkpoints.make(name, folder) for name in ARCHITECTURES}
    made["uneven"] = checkpoints.make_uneven(folder / "uneven", UNEVEN_LAYERS), None
    anew = checkpoints.make_uneven(folder / "uneven-anew", UNEVEN_LAYERS, sparsity=0.6)
    made["uneven anew"] = anew, None
    made["classifier"] = checkpoints.make_classifier(folder / "classifier")
    made["unpruned"] = checkpoints.make("llama", folder / "unpruned", sparsity=0.0)
    made["router"] = checkpoints.make("qwen3_moe", folder, sparsity=None, pattern=(2, 4))
    made["biased"] = checkpoints.make("gpt_oss", folder)
    regular = two_of_four(made["unpruned"][0], folder / "2of4")
    made["2:4"] = regular, None
    codes, made_of_them = quantize(regular, folder / "int4", "int4", 32)
    # Kernels do not round the products of codes and scales, as who stores them dense does.
    made["int4"], made["int4 rounded"] = (codes, codes), (made_of_them, None)
    rounded, _ = quantize(regular, folder / "fp8", "fp8_e4m3", activations=True)
    made["fp8 x fp8"] = rounded, rounded  # which transformers reads, too
    return made


@pytest.fixture(scope="module")
def expected(models):
    classifier = models["classifier"][0]
    tokens = {n: checkpoints.greedy(d) for n, (d, _) in models.items() if d != classifier}
    return tokens | {"classifier": checkpoints.probabilities(classifier)}


@pytest.fixture(scope="module")
def jobs(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    todo = {}
    for name in ARCHITECTURES:
        dense, packed = models[name]
        todo[f"{name} packed"] = job(packed)
        todo[f"{name} dense"] = job(dense, quantization="flashsparse")
    dense, packed = models["llama"]
    override = {"quant_method": "flashsparse", "pruning": "magnitude", "sparsity": 0.5}
    lora = {"enable_lora": True, "max_lora_rank": 8}
    adapted = adapter(folder / "adapter", dense)
    qkv = ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"]
    made_up = {"load_format": "dummy", "sparse_method": "tiled_csl"}
    uneven = models["uneven"][0], models["uneven anew"][0]
    place, pieces = folder / "place", {"piecewise": True}
    compiled = {"enforce_eager": False, "sparse_method": "tiled_csl"}
    (tied, _), (unpruned, _) = models["llama-tied"], models["unpruned"]
    bitmask = rewrite(shutil.copytree(dense, folder / "bitmask"), "sparse-bitmask")
    bitmask_24 = shutil.copytree(models["2:4"][0], folder / "bitmask-24")
    pattern = {"method": "nm_vector", "options": {"n": 2, "m": 4}}
    unpruned_codes, _ = quantize(models["unpruned"][0], folder / "codes", "int4", 32)
    regular = folder / "2of4-packed"
    convert_checkpoint(models["2:4"][0], regular, format="nm_vector", options=pattern["options"])
    todo |= {
        # Ways to ask.
        "sparse_method": job(dense, sparse_method="tiled_csl"),
        "additional_config": job(dense, additional_config={"flashsparse": {"method": "tiled_csl"}}),
        "hf_overrides": job(dense, hf_overrides={"quantization_config": override}),
        "auto": job(dense, sparse_method="auto"),
        "auto packed": job(packed, sparse_method="auto"),
        "auto unpruned": job(models["unpruned"][0], sparse_method="auto"),
        "none": job(dense, sparse_method="none"),
        "none packed": job(packed, sparse_method="none"),
        "compiled": job(packed, enforce_eager=False),
        "pieces": job(place, extra=pieces | {"link": str(uneven[0])}, **compiled),
        "pieces again": job(place, extra=pieces | {"link": str(uneven[0])}, **compiled),
        "pieces pruned anew": job(place, extra=pieces | {"link": str(uneven[1])}, **compiled),
        "bfloat16": job(packed, dtype="bfloat16"),
        # Layers that stay dense, by their own names and by vLLM's.
        "ignore": job(dense, additional_config={"flashsparse": {"ignore": [*qkv, "layers.1.mlp"]}}),
        "ignore merged": job(dense, additional_config={"flashsparse": {"ignore": ["qkv_proj"]}}),
        "lm_head": job(dense, additional_config={"flashsparse": {"ignore": []}}),
        "ignore some": job(dense, additional_config={"flashsparse": {"ignore": ["k_proj"]}}),
        # Dense layers that several implementations multiply, as on a GPU.
        "dispatched": job(
            tied,
            {"dataflow": [0, 0, 24]},
            additional_config={"flashsparse": {"ignore": ["down_proj"]}},
        ),
        "dispatched yardstick": job(packed, {"dataflow": [2, 16, 24]}, sparse_method="none"),
        "dispatched compiled": job(
            unpruned,
            {"dataflow": [2, 16, 24], **pieces},
            enforce_eager=False,
            sparse_method="auto",
            additional_config={"flashsparse": {"ignore": ["re:.*_proj", "lm_head"]}},
            dtype="bfloat16",
        ),
        # LoRA.
        "lora dense": job(dense, lora=adapted, **lora),
        "lora packed": job(packed, lora=adapted, **lora),
        # Layers that vLLM creates without asking, and weights that are not read.
        "classifier": job(models["classifier"][1], {"classify": True}),
        "reload": job(packed, {"reload": True}),
        "dummy packed": job(packed, load_format="dummy"),
        "dummy": job(dense, additional_config={"flashsparse": {"sparsity": 0.9}}, **made_up),
        "dummy of a pattern": job(
            dense,
            additional_config={"flashsparse": {"sparsity": 0.9, "options": {"n": 2, "m": 4}}},
            **made_up | {"sparse_method": "nm_vector"},
        ),
        "dummy experts": job(
            models["router"][0],
            additional_config={"flashsparse": {**pattern, "sparsity": 0.9, "experts": "packed"}},
            load_format="dummy",
        ),
        "dummy of unknown sparsity": job(dense, **made_up),
        "sharded": job(packed, load_format="sharded_state"),
        "unmarked": job(without_method(packed, folder / "unmarked")),
        # Sparse checkpoints of compressed-tensors.
        "bitmask": job(bitmask, sparse_method="tiled_csl"),
        "bitmask unasked": job(bitmask),
        "bitmask none": job(bitmask, sparse_method="none"),
        "bitmask 2:4": job(
            rewrite(bitmask_24, "sparse-24-bitmask"), additional_config={"flashsparse": pattern}
        ),
        "masks": job(masked(dense, folder / "masks"), sparse_method="auto"),
        "masks none": job(str(folder / "masks"), sparse_method="none"),
        "bitmask hostile": job(hostile(bitmask, folder / "hostile"), sparse_method="auto"),
        "packed 2:4": job(regular),
        "2:4": job(models["2:4"][0], sparse_method="auto"),
        "router dense": job(models["router"][0], additional_config={"flashsparse": pattern}),
        "router packed": job(models["router"][1]),
        # Experts with biases, of which vLLM's loader knows one tensor alone.
        "biased": job(models["biased"][0]),
        "biased packed": job(models["biased"][1]),
        "biased unpacked": job(
            models["biased"][1], additional_config={"flashsparse": {"experts": "dense"}}
        ),
        "biased while loading": job(
            models["biased"][0],
            additional_config={"flashsparse": {"experts": "packed"}},
            sparse_method="tiled_csl",
        ),
        # Quantized ones.
        "codes and activations": job(models["fp8 x fp8"][1]),
        "codes by group": job(models["int4"][1], sparse_method="auto"),
        "codes none": job(models["int4"][1], sparse_method="none"),
        "codes as another format": job(models["int4"][1], sparse_method="tiled_csl"),
        "codes without zeros": job(unpruned_codes),
        # vLLM multiplies its own 4-bit weights on a CPU in 16 bits only.
        "idle sparsity": job(
            with_config(unpruned_codes, folder / "idle", sparsity_config=IDLE_SPARSITY),
            dtype="bfloat16",
        ),
        "no sparsity_config": job(
            with_config(unpruned_codes, folder / "none", sparsity_config={}), dtype="bfloat16"
        ),
        # Contradictions.
        "other method": job(packed, additional_config={"flashsparse": {"method": "nm"}}),
        "unknown key": job(dense, additional_config={"flashsparse": {"sparsty": 0.5}}),
        "no sparsity": job(dense, additional_config={"flashsparse": {"pruning": "magnitude"}}),
        "two methods": job(dense, sparse_method="tiled_csl", quantization="fp8"),
        "older": job(with_config(packed, folder / "older", format_version=0)),
        "newer": job(with_config(packed, folder / "newer", format_version=9)),
        "mixed": job(partly_dense(packed, dense, folder / "mixed")),
    }
    return todo


@pytest.fixture(scope="module")
def results(jobs, run_offline):
    return run_offline(jobs)


def kinds(result, *names) -> set[str]:
    """The methods of the layers whose name ends in one of `names`."""
    assert "error" not in result, result["error"]
    found = {k: v for k, v in result["layers"].items() if k.rpartition(".")[2] in names}
    assert found
    return set(found.values())


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["packed", "dense"])
def test_every_architecture(results, expected, name, kind):
    result = results[f"{name} {kind}"]
    if (name, kind) in REORDERED:
        for words in ("rows", "reorders", "query_key_value", "--sparse-method tiled_bitmap"):
            assert words in result["error"]
        return
    assert "error" not in result, result["error"]
    assert result["tokens"] == expected[name]
    assert SPARSE in result["layers"].values()
    dense = {k.rpartition(".")[2] for k, v in result["layers"].items() if v == DENSE}
    assert dense == ({"gate"} if name in ("mixtral", "granitemoe") else set())


def test_the_documentation_lists_what_was_served(results):
    """docs/models.md is made from this file."""
    with (Path(__file__).parents[1] / "hf" / "models_tested.csv").open() as file:
        rows = {row["vllm"]: row for row in csv.DictReader(file)}
    told = {}
    for name in {*ARCHITECTURES} - {"llama-tied"}:
        served = {kind: "error" not in results[f"{name} {kind}"] for kind in ("packed", "dense")}
        told[name] = (
            "ok" if served["packed"] else "refused: reorders",
            "ok" if served["dense"] else "",
        )
    told["classifier"] = ("ok", "")
    assert told == {
        name: (row["vllm_packed"], row["vllm_at_load"]) for name, row in rows.items() if name
    }


@pytest.mark.parametrize(
    "name", ["sparse_method", "additional_config", "auto", "auto packed", "compiled"]
)
def test_every_way_to_ask(results, expected, name):
    assert kinds(results[name], "qkv_proj", "gate_up_proj", "o_proj", "down_proj") == {SPARSE}
    assert results[name]["tokens"] == expected["llama"]


@pytest.mark.parametrize(
    ("name", "same", "kind"),
    [
        ("bitmask", "llama", SPARSE),
        ("bitmask unasked", "llama", SPARSE),
        ("bitmask none", "llama", "_DenseAfterAll"),
        ("bitmask 2:4", "2:4", SPARSE),
        ("masks", "llama", SPARSE),
        ("masks none", "llama", DENSE),
    ],
)
def test_sparse_checkpoints_of_other_tools(results, expected, name, same, kind):
    assert kinds(results[name], "qkv_proj", "gate_up_proj", "o_proj", "down_proj") == {kind}
    assert results[name]["tokens"] == expected[same]
    unasked = [line for line in results[name]["log"] if "--sparse-method auto" in line]
    assert bool(unasked) == (name == "bitmask unasked")


@pytest.mark.parametrize(
    ("name", "same", "kind"),
    [
        ("codes and activations", "fp8 x fp8", SPARSE),
        ("codes by group", "int4", SPARSE),
        ("codes none", "int4 rounded", "_DenseAfterAll"),
    ],
)
def test_quantized_checkpoints_of_other_tools(results, expected, name, same, kind):
    assert kinds(results[name], "qkv_proj", "gate_up_proj", "o_proj", "down_proj") == {kind}
    assert results[name]["tokens"] == expected[same]
    assert any("codes and scales stay as they are" in line for line in results[name]["log"])


def test_quantized_checkpoints_that_merely_mention_zeros_are_vllms_own(results):
    """vLLM alone refuses any `sparsity_config`."""
    idle, plain = results["idle sparsity"], results["no sparsity_config"]
    if not torch.cpu._is_avx512_supported():  # vLLM has no kernel for 4 bits there
        assert "cpu_gemm_wna16" in plain["error"] and idle["error"] == plain["error"]
        return
    assert kinds(idle, "qkv_proj", "o_proj", "down_proj") == {"CompressedTensorsLinearMethod"}
    assert idle["tokens"] == plain["tokens"]


@pytest.mark.parametrize("name", ["packed 2:4", "2:4"])
def test_a_pattern_is_served_packed_before_and_while_loading(results, expected, name):
    """The latter as RedHatAI's Sparse-Llama-3.1-8B-2of4 is published."""
    assert kinds(results[name], "qkv_proj", "gate_up_proj", "down_proj") == {SPARSE}
    assert results[name]["tokens"] == expected["2:4"]


def test_pruning_while_loading(results, models, tmp_path):
    """Of each layer as the checkpoint has it, as transformers does it."""
    from transformers import AutoModelForCausalLM

    from flashsparse_plugin.pruning import prune

    model = AutoModelForCausalLM.from_pretrained(models["llama"][0])
    prune(model, method="magnitude", sparsity=0.5, progress=False)
    model.save_pretrained(tmp_path)
    assert kinds(results["hf_overrides"], "qkv_proj") == {SPARSE}
    assert results["hf_overrides"]["tokens"] == checkpoints.greedy(tmp_path)


@pytest.mark.parametrize("name", ["none", "none packed"])
def test_none_is_dense(results, expected, name):
    assert SPARSE not in results[name]["layers"].values()
    assert results[name]["tokens"] == expected["llama"]


def test_auto_keeps_every_bit_of_what_is_not_sparse(results, expected):
    """In 12 bits a weight, which a CPU reads faster than 16."""
    result = results["auto unpruned"]
    assert kinds(result, "down_proj") == {SPARSE}
    assert result["tokens"] == expected["unpruned"]
    assert "0 layers packed" not in result["log"][-1]


def test_ignored_layers_stay_dense(results, expected):
    for name in ("ignore", "ignore merged"):
        assert kinds(results[name], "qkv_proj") == {DENSE}
        assert kinds(results[name], "o_proj") == {SPARSE}
        assert results[name]["tokens"] == expected["llama"]
        assert "left dense" in results[name]["log"][-1] and "ignored" in results[name]["log"][-1]
    layers = results["ignore"]["layers"]
    assert layers["model.layers.0.mlp.down_proj"] == SPARSE
    assert layers["model.layers.1.mlp.down_proj"] == DENSE


def test_dense_layers_go_by_their_dataflow(results, expected):
    result = results["dispatched"]
    assert kinds(result, "down_proj") == {"DenseLinearMethod"}
    assert kinds(result, "lm_head") == {"DenseHeadMethod"}
    assert kinds(result, "qkv_proj", "o_proj", "gate_up_proj") == {SPARSE}
    assert result["tokens"] == expected["llama-tied"]
    yardstick = results["dispatched yardstick"]
    assert yardstick["tokens"] == expected["llama"]
    assert not [line for line in yardstick["log"] if "pretended" in line]
    assert "flashsparse_dataflow" not in yardstick["settings"]


def test_packed_layers_go_by_their_dataflow(results):
    """The op is told the threshold, the log who decided it, and the compile cache goes by it."""
    result = results["dispatched"]
    assert result["plans"] == ["sparse for up to 24 tokens, else library (pretended)"]
    found = "_linear on CPU, sparse for up to 24 tokens, else library (pretended)"
    assert len([line for line in result["log"] if line.endswith(found)]) == 3  # kinds of layers
    counted = result["settings"]["flashsparse_dataflow"]
    assert counted["model.layers.1.self_attn.qkv_proj"] == [[24, "sparse"], [None, "library"]]
    assert counted["model.layers.1.mlp.down_proj"] == [0, 0]


def test_graphs_hold_the_dataflow_of_dense_layers(results, expected):
    """For any number of tokens, and vLLM's compile cache goes by what they hold."""
    result = results["dispatched compiled"]
    assert "error" not in result, result["error"]
    first = [tokens[0] for tokens in result["tokens"]]
    assert first == [tokens[0] for tokens in expected["unpruned"]]
    assert SPARSE not in result["layers"].values() and result["compiled"]["pieces"] > 0
    counted = result["settings"]["flashsparse_dataflow"]
    assert set(map(tuple, counted.values())) == {(2, 16)}
    assert counted.keys() >= {"lm_head", "model.layers.0.mlp.down_proj"} and len(counted) == 13
    found = "gemv for up to 2 tokens, flat_gemm for up to 16 tokens, else torch (pretended)"
    told = [line.partition(" ")[0] for line in result["log"] if line.endswith(found)]
    assert told[-1] == "lm_head" and len(told) == len(set(told)) == 5


def test_the_head_is_packed_where_asked(results, expected):
    assert kinds(results["additional_config"], "lm_head") == {"UnquantizedEmbeddingMethod"}
    assert kinds(results["lm_head"], "lm_head") == {SPARSE}
    assert results["lm_head"]["tokens"] == expected["llama"]


def test_bfloat16_generates(results, expected):
    """Rounding may part ways later; the first token is far enough from its rivals."""
    first = [tokens[0] for tokens in results["bfloat16"]["tokens"]]
    assert first == [tokens[0] for tokens in expected["llama"]]


def test_lora_works_on_sparse_layers(results, expected):
    assert results["lora packed"]["tokens"] == results["lora dense"]["tokens"]
    assert results["lora packed"]["tokens"] != expected["llama"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ignore some", ["qkv_proj", "k_proj: dense", "q_proj: tiled_bitmap", "Treat them alike"]),
        ("mixed", ["layers.0.self_attn.qkv_proj", "some packed and some dense", "--pack-all"]),
        ("other method", ["nm", "tiled_csl"]),
        ("unknown key", ["sparsty", "sparsity"]),
        ("no sparsity", ["magnitude", "sparsity=0.5"]),
        ("two methods", ["tiled_csl", "fp8"]),
        ("older", ["version 0", "versions start at 1", "flashsparse convert"]),
        ("dummy of unknown sparsity", ["--load-format dummy", "the sparsity", '"sparsity": 0.5']),
        ("sharded", ["--load-format sharded_state", "packed checkpoint itself"]),
        ("unmarked", ["model.layers.", "packed by flashsparse", "no quantization_config"]),
        ("newer", ["version 9", "version 1", "pip install -U"]),
        ("codes as another format", ["tiled_csl has no codes", "convert MODEL OUT --format"]),
        (
            "codes without zeros",
            ["layer 'model.layers.0.", "nm_vector(2:4, int4 by 32)", "with vLLM alone"],
        ),
        (
            "biased while loading",
            ["0.mlp.experts' have biases", "`flashsparse convert` packs them"],
        ),
        ("bitmask hostile", ["layers.1.mlp.up_proj.weight", "its bitmask keeps", "fetch it again"]),
    ],
)
def test_what_cannot_be_meant_is_refused(results, name, words):
    error = results[name].get("error", "it was served")
    assert [word for word in words if word not in error] == [], error


def test_experts_are_packed_where_the_checkpoint_has_them_packed(results):
    """Of a dense checkpoint they stay dense beside packed attention.

    Files have those of Mixtral one by one, and those of Granite in one tensor.
    """
    for name, kind in itertools.product(("mixtral", "granitemoe"), ("packed", "dense")):
        result = results[f"{name} {kind}"]
        assert kinds(result, "qkv_proj", "o_proj") == {SPARSE}
        packed = [k for k, v in result["layers"].items() if v == "SparseExpertsMethod"]
        assert len(packed) == (3 if kind == "packed" else 0)
        assert ("left dense: 3 experts" in result["log"][-1]) == (kind == "dense")


@pytest.mark.parametrize("kind", ["packed", "unpacked"])
def test_experts_with_biases_are_those_of_vllm_itself(results, kind):
    """gpt-oss's, whose rows of gate and up alternate. Its tokens on a CPU are vLLM's own, as the
    dense model's are not those of transformers to the last."""
    result = results[f"biased {kind}"]
    assert result["tokens"] == results["biased"]["tokens"]
    experts = [k for k, v in result["layers"].items() if v == "SparseExpertsMethod"]
    assert len(experts) == (3 if kind == "packed" else 0)


@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_routers_that_vllm_quantizes_stay_dense(results, expected, kind):
    """Nothing prunes those of Qwen3-MoE, so that a pattern would refuse them; and vLLM's kernels
    for routers want vLLM's own method from the start."""
    result = results[f"router {kind}"]
    assert kinds(result, "gate") == {DENSE}
    assert kinds(result, "qkv_proj", "o_proj") == {SPARSE}
    assert result["tokens"] == expected["router"]


def test_layers_that_vllm_creates_without_asking_are_unpacked(results, expected):
    """The pooler and the classifier of BERT."""
    result = results["classifier"]
    assert kinds(result, "qkv_proj", "dense") == {SPARSE}
    assert torch.tensor(result["tokens"]).allclose(torch.tensor(expected["classifier"]), atol=1e-5)
    assert any("unpacked while they load" in line for line in result["log"])


def test_weights_are_not_reloaded_into_a_running_engine(results, expected):
    result = results["reload"]
    assert "cannot be replaced in a running engine" in result["reload"]
    assert result["again"] == result["tokens"] == expected["llama"]


@pytest.mark.parametrize(("name", "sparsity"), [("dummy packed", 0.8), ("dummy", 0.9)])
def test_made_up_weights_have_the_zeros_of_the_model(results, name, sparsity):
    assert kinds(results[name], "qkv_proj", "gate_up_proj", "o_proj", "down_proj") == {SPARSE}
    for elements, kept in results[name]["streams"].values():
        assert kept / elements == pytest.approx(1 - sparsity, abs=0.02)


def test_made_up_weights_follow_the_pattern_that_is_asked_for(results):
    assert "error" not in results["dummy of a pattern"], results["dummy of a pattern"]
    assert kinds(results["dummy of a pattern"], "qkv_proj", "down_proj") == {SPARSE}


def test_experts_are_made_up_where_they_are_packed(results):
    result = results["dummy experts"]
    assert kinds(result, "qkv_proj", "o_proj") == {SPARSE}
    assert "SparseExpertsMethod" in result["layers"].values()
    assert "experts" not in result["log"][-1]  # none of them left dense


def test_layers_share_compiled_graphs(results, expected, models):
    """No two layers have as many nonzeros, and yet what lies between the attention of two layers is
    compiled once: beside it there are the beginning and the end of the model."""
    weights = load_file(models["uneven"][0] / "model.safetensors")
    nonzeros = [int(w.count_nonzero()) for name, w in weights.items() if "down_proj" in name]
    assert len(set(nonzeros)) == UNEVEN_LAYERS
    result = results["pieces"]
    assert "error" not in result, result["error"]
    assert result["tokens"] == expected["uneven"]
    assert result["compiled"] == {"pieces": UNEVEN_LAYERS + 1, "different": 3, "from_cache": 0}


def test_compiled_graphs_are_those_of_the_weights(results, expected):
    """vLLM keeps compiled graphs by configuration: a model that is pruned anew and saved in the
    same place has the same one, and other lengths of streams."""
    again, anew = results["pieces again"], results["pieces pruned anew"]
    assert again["compiled"]["different"] == 0 and again["compiled"]["from_cache"] > 0
    assert again["tokens"] == expected["uneven"]
    assert "error" not in anew, anew["error"]
    assert anew["compiled"]["from_cache"] == 0
    assert anew["tokens"] == expected["uneven anew"]


def test_the_log_tells_each_kernel_once_and_the_sum(results):
    log = results["llama dense"]["log"]
    kernels = [line for line in log if "_linear on CPU" in line]
    assert len(kernels) == len(set(kernels)) == 4
    assert "12 layers packed" in log[-1] and "1 output head" in log[-1]
