# SPDX-License-Identifier: Apache-2.0
"""What is packed is a whole model, saved so that it loads: split layers, biases, new heads."""

import shutil

import pytest
import tiny
import torch
import transformers
from checkpoints import edit_weights, load_all
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.core_model_loading import WeightRenaming

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.modules import weight_of

_SMALL = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=64,
    initializer_range=0.2,
    pad_token_id=0,
)
IDS = torch.randint(3, 250, (2, 9), generator=torch.Generator().manual_seed(1))


def dense(path, kind=None):
    """A dense model as it is loaded, in float32."""
    return (kind or AutoModel).from_pretrained(path, dtype=torch.float32)


def made(kind, **changes):
    """A random pruned model in bfloat16, with biases and norms that are not trivial."""
    torch.manual_seed(0)
    model = kind(kind.config_class(**{**_SMALL, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return tiny.masked_(model).to(torch.bfloat16).eval()


@torch.no_grad()
def answer(model):
    return model(input_ids=IDS)[0].double()


def packed_names(model):
    return sorted(name for name, m in model.named_modules() if isinstance(m, SparseLinear))


def alike(found, expected):
    return (found - expected).abs().max() <= 1e-4 * expected.abs().max()


# Families whose file has q, k and v in one tensor (gate and up, or all four), which is split.
SPLIT = [
    "GteForMaskedLM",
    "JinaEmbeddingsV3ForMaskedLM",
    "NomicBertForMaskedLM",
    "HrmTextForCausalLM",
]
SPLIT = [getattr(transformers, name) for name in SPLIT if hasattr(transformers, name)]
split = pytest.mark.parametrize("kind", SPLIT)


@split
def test_split_layers_that_were_packed_at_load_are_saved_apart(kind, tmp_path):
    model = made(kind)
    model.save_pretrained(tmp_path / "dense")
    expected = answer(dense(tmp_path / "dense", kind))
    config = fs.FlashSparseConfig()
    packed = kind.from_pretrained(
        tmp_path / "dense", dtype=torch.bfloat16, quantization_config=config
    )
    layers = packed_names(packed)
    assert any(name.endswith("q_proj") for name in layers)
    for turn in ("once", "again"):  # a loaded packed model is saved, too
        packed.save_pretrained(tmp_path / turn)
        packed, told = kind.from_pretrained(
            tmp_path / turn, dtype=torch.float32, output_loading_info=True
        )
        assert not any(told.values()), told
        assert packed_names(packed) == layers
        assert alike(answer(packed), expected)


@split
def test_convert_packs_what_loading_packs(kind, tmp_path):
    model = made(kind)
    model.save_pretrained(tmp_path / "dense")
    at_load = kind.from_pretrained(tmp_path / "dense", quantization_config=fs.FlashSparseConfig())
    report = convert_checkpoint(tmp_path / "dense", tmp_path / "out", pack_all=True)
    assert sorted(layer.name for layer in report.packed) == packed_names(at_load)
    inspected = inspect_checkpoint(tmp_path / "dense")
    assert {x.name for x in inspected.layers} >= {x.name for x in report.packed}
    assert inspected.bytes_stored == sum(t.nbytes for t in load_all(tmp_path / "dense").values())
    found, told = kind.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values()), told
    assert alike(answer(found), answer(dense(tmp_path / "dense", kind)))


def test_a_split_layer_may_stay_dense(tmp_path):
    (kind,) = SPLIT[:1]
    model = made(kind)
    model.save_pretrained(tmp_path / "dense")
    report = convert_checkpoint(
        tmp_path / "dense", tmp_path / "out", ignore=["re:.*k_proj"], pack_all=True
    )
    assert {x.kind for x in report.layers if not x.is_packed} >= {"k_proj"}
    assert {x.kind for x in report.packed} >= {"q_proj", "v_proj"}
    found = kind.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert alike(answer(found), answer(dense(tmp_path / "dense", kind)))


def test_names_under_which_packed_tensors_would_be_lost_are_refused(llama, tmp_path):
    model = tiny.load(llama.packed)
    model._weight_conversions = [WeightRenaming("of_old.mlp", "mlp")]
    with pytest.raises(fs.FormatError, match=r"mlp.*would be saved as .*of_old\.mlp.*Remedy"):
        model.save_pretrained(tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*.safetensors")]


# What a checkpoint lacks.

BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.fixture
def without_bias(llama, tmp_path):
    path = shutil.copytree(llama.masked, tmp_path / "masked")
    edit_weights(path, lambda tensors: tensors.pop(BIAS))
    return path


def test_packing_at_load_refuses_a_bias_that_the_file_lacks(without_bias):
    with pytest.raises(fs.FormatError, match=r"q_proj'.* bias \[64\] .*ignore="):
        tiny.load(without_bias, quantization_config=fs.FlashSparseConfig())
    with pytest.raises(CheckpointError, match=r"q_proj'.* bias \[64\]"):
        convert_checkpoint(without_bias, without_bias.parent / "out")


def test_a_layer_that_lacks_its_bias_may_stay_dense(without_bias):
    config = fs.FlashSparseConfig(ignore=["lm_head", "model.layers.0.self_attn.q_proj"])
    model = tiny.load(without_bias, quantization_config=config)
    assert "model.layers.0.self_attn.q_proj" not in tiny.sparse_layers(model)
    assert not model.get_parameter(BIAS).any()


def test_a_state_dict_without_a_bias_is_refused(llama):
    state = load_all(llama.masked)
    config = AutoConfig.from_pretrained(llama.masked)
    kind = transformers.LlamaForCausalLM
    given = dict(config=config, quantization_config=fs.FlashSparseConfig())
    model = kind.from_pretrained(None, state_dict=dict(state), **given)
    assert torch.equal(model.get_parameter(BIAS), state[BIAS])
    del state[BIAS]
    with pytest.raises(fs.FormatError, match=r"q_proj'.*bias \[64\] is not in the state_dict"):
        kind.from_pretrained(None, state_dict=state, **given)


@pytest.mark.parametrize("lost", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_packing_refuses_a_model_with_a_hole(llama, tmp_path, lost):
    path = shutil.copytree(llama.masked, tmp_path / "masked")
    edit_weights(path, lambda each: each.update({"model.something.else": each.pop(lost)}))
    match = rf"{lost.rpartition('.')[0]}'.*it has 'model\.something\.else'"
    with pytest.raises(fs.FormatError, match=match):
        tiny.load(path, quantization_config=fs.FlashSparseConfig())
    with pytest.raises(CheckpointError, match=match):
        convert_checkpoint(path, tmp_path / "out")


def test_experts_under_names_that_transformers_does_not_know_are_refused(tmp_path):
    """As compressed-tensors of 2026 names those of Mixtral; a dense load makes them up."""
    kind = transformers.MixtralForCausalLM
    made(kind, num_local_experts=2, num_experts_per_tok=1).save_pretrained(tmp_path / "moe")

    def rename(tensors):
        for key in [*tensors]:
            for old, new in {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.items():
                if f".{old}." in key:
                    tensors[key.replace(f".{old}.", f".{new}.")] = tensors.pop(key)

    edit_weights(tmp_path / "moe", rename)
    match = r"experts'.*(gate_up_proj|down_proj) .*block_sparse_moe\.experts\.0\.down_proj"
    with pytest.raises(fs.FormatError, match=match):
        kind.from_pretrained(tmp_path / "moe", quantization_config=fs.FlashSparseConfig())
    with pytest.raises(CheckpointError, match=match):
        convert_checkpoint(tmp_path / "moe", tmp_path / "out")


# A packed base model, and a model of another class.


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A packed and a dense masked language model without a pooler."""
    path = tmp_path_factory.mktemp("bert")
    made(transformers.BertForMaskedLM).save_pretrained(path / "dense")
    convert_checkpoint(path / "dense", path / "packed", pack_all=True)
    return path


NEW_HEADS = {
    "Bert": [
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
        "SequenceClassification",
    ],
    "Llama": ["TokenClassification", "SequenceClassification"],
    "Qwen2": ["TokenClassification", "SequenceClassification"],
    "GPT2": ["TokenClassification", "QuestionAnswering", "SequenceClassification"],
    "T5": ["TokenClassification", "SequenceClassification"],
}
BASES = {
    "Bert": ("BertForMaskedLM", {}),
    "Llama": ("LlamaForCausalLM", {}),
    "Qwen2": ("Qwen2ForCausalLM", {}),
    "GPT2": ("GPT2LMHeadModel", dict(n_embd=64, n_layer=2, n_head=2, n_positions=64)),
    "T5": (
        "T5ForConditionalGeneration",
        dict(d_model=64, d_kv=32, d_ff=96, num_layers=2, num_heads=2),
    ),
}


@pytest.mark.parametrize(
    ("family", "head"), [(family, head) for family, heads in NEW_HEADS.items() for head in heads]
)
def test_a_packed_base_model_takes_a_new_head(family, head, tmp_path, caplog):
    name, settings = BASES[family]
    made(getattr(transformers, name), **settings).save_pretrained(tmp_path / "dense")
    convert_checkpoint(tmp_path / "dense", tmp_path / "packed", pack_all=True)
    kind = getattr(transformers, f"{family}For{head}")
    reference, expected = kind.from_pretrained(tmp_path / "dense", output_loading_info=True)
    packed, told = kind.from_pretrained(tmp_path / "packed", output_loading_info=True)
    assert told["missing_keys"] == expected["missing_keys"] != set()
    layers = packed_names(packed)
    assert layers
    for key in told["missing_keys"]:  # made up by transformers, as of the dense model
        layer = key.rpartition(".")[0]
        assert layer not in layers
        assert packed.get_parameter(key).isfinite().all()
    at_load = kind.from_pretrained(tmp_path / "dense", quantization_config=fs.FlashSparseConfig())
    assert set() < set(packed_names(at_load)) <= set(layers)
    for name, parameter in reference.named_parameters():
        layer, _, own = name.rpartition(".")
        if layer in layers and own == "weight":
            found, parameter = packed.get_submodule(layer).weight, reference.get_submodule(layer)
            parameter = weight_of(parameter)
        else:
            found = packed.get_parameter(name)
        if name not in told["missing_keys"]:
            assert torch.equal(found.float(), parameter.float()), name


def test_the_base_of_a_masked_language_model_gets_its_pooler(bert):
    packed, told = AutoModel.from_pretrained(
        bert / "packed", dtype=torch.float32, output_loading_info=True
    )
    assert told["missing_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}
    assert len(packed_names(packed)) == 12
    assert alike(answer(packed), answer(dense(bert / "dense")))


def test_a_pipeline_of_features_gives_hidden_states(bert):
    from transformers import pipeline
    from transformers.models.bert.tokenization_bert import BertTokenizer

    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    tokenizer = BertTokenizer(vocab=words)
    tokenizer.save_pretrained(bert / "packed")
    features = pipeline("feature-extraction", model=str(bert / "packed"), tokenizer=tokenizer)
    assert torch.tensor(features("a a")).shape[-1] == _SMALL["hidden_size"]


def test_an_encoder_and_a_decoder_are_made_of_packed_models(bert, tmp_path):
    from transformers import EncoderDecoderModel

    paths = [str(bert / "packed")] * 2
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(*paths)
    layers = packed_names(model)
    assert len([name for name in layers if name.startswith("encoder.")]) == 12
    assert len([name for name in layers if name.startswith("decoder.")]) >= 12
    assert not any("crossattention" in name for name in layers)
    out = model(input_ids=IDS, decoder_input_ids=IDS[:, :4]).logits
    assert out.isfinite().all()


def test_a_new_head_learns_by_lora(bert):
    peft = pytest.importorskip("peft")
    kind = transformers.BertForTokenClassification
    model = kind.from_pretrained(bert / "packed", dtype=torch.float32, num_labels=3)
    config = peft.LoraConfig(task_type="TOKEN_CLS", target_modules=["query", "value"])
    tuned = peft.get_peft_model(model, config)
    loss = tuned(input_ids=IDS, labels=IDS % 3).loss
    loss.backward()
    head = tuned.get_submodule("base_model.model.classifier.modules_to_save.default")
    assert head.weight.grad.any()


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForMaskedLM])
def test_a_layer_that_is_lost_from_one_block_is_refused(bert, kind, tmp_path):
    path = shutil.copytree(bert / "packed", tmp_path / "packed")
    layer = "bert.encoder.layer.1.output.dense."

    def lose(tensors):
        for key in [key for key in tensors if key.startswith(layer)]:
            del tensors[key]

    edit_weights(path, lose)
    with pytest.raises(fs.FormatError, match=r"encoder\.layer\.1\.output\.dense' is not in"):
        kind.from_pretrained(path)
