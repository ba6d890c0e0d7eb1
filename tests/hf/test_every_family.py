# SPDX-License-Identifier: Apache-2.0
"""Every family of transformers that a tiny model can be built of, through all ways of packing.

Weights are compared and not outputs, so that no family needs inputs of its own. every_family.csv
has what becomes of each: "ok", or why nothing can be asked of it.
"""

import csv
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from checkpoints import edit_weights, load_all
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto import modeling_auto

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint
from flashsparse_plugin.expert_layout import layout_of
from flashsparse_plugin.experts import PackedStack
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.modules import linear_modules, weight_of
from flashsparse_plugin.packed import FormatError
from flashsparse_plugin.pruning import prune_weight
from flashsparse_plugin.pruning.experts import expert_views

pytestmark = pytest.mark.slow  # not each, but there are hundreds

MOST_WEIGHTS = 4_200_000
NO_MODEL = "no small model"
_WIDTH = dict.fromkeys(["hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim"], 64)
_INNER = dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"], 96)
_INNER |= dict.fromkeys(["decoder_ffn_dim", "moe_intermediate_size", "n_inner"], 96)
_INNER |= dict.fromkeys(["shared_expert_intermediate_size", "mlp_dim"], 96)
_DEPTH = dict.fromkeys(["num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"], 2)
_DEPTH |= dict.fromkeys(["encoder_layers", "decoder_layers", "num_decoder_layers"], 2)
_HEADS = dict.fromkeys(["num_attention_heads", "num_heads", "n_head", "n_heads"], 2)
_HEADS |= dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 2)
_HEADS |= dict.fromkeys(["num_key_value_heads"], 2)
_EXPERTS = dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4)
_EXPERTS |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
SMALL = {
    **_WIDTH, **_INNER, **_DEPTH, **_HEADS, **_EXPERTS,
    "vocab_size": 256, "head_dim": 32, "max_position_embeddings": 64, "n_positions": 64,
    "embedding_size": 64, "word_embed_proj_dim": 64, "image_size": 32, "patch_size": 16,
    "projection_dim": 32, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1, "state_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "d_kv": 32,
}  # fmt: skip
_CLASSES = [
    getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES")
    for name in ("FOR_CAUSAL_LM_", "FOR_MASKED_LM_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "")
]

TABLE_FILE = Path(__file__).parent / "every_family.csv"


def table():
    with TABLE_FILE.open() as file:
        return {row["model_type"]: row["status"] for row in csv.DictReader(file)}


def small(kind: type[PretrainedConfig]) -> PretrainedConfig:
    """A configuration of a family whose models are tiny, if its sizes have names that are known."""
    default = kind()
    settings = {key: value for key, value in SMALL.items() if hasattr(default, key)}
    for key, own in getattr(kind, "sub_configs", {}).items():
        below = getattr(default, key, None)
        if isinstance(below, PretrainedConfig) and type(below).sub_configs is not None:
            settings[key] = small(type(below)) if issubclass(type(below), own) else below
    return kind(**settings)


def class_of(model_type: str) -> type | None:
    for names in _CLASSES:
        name = names.get(model_type)
        name = name[0] if isinstance(name, tuple | list) else name
        if name is not None:
            return getattr(transformers, name, None)
    return None


def built(model_type: str) -> nn.Module | None:
    """A random pruned model in bfloat16; None where transformers has no small one."""
    kind = class_of(model_type)
    if kind is None:
        return None
    try:
        config = small(CONFIG_MAPPING[model_type])
        with torch.device("meta"):
            model = kind(config)
        layers = [weight_of(each).numel() for each in linear_modules(model).values()]
        if sum(each.numel() for each in model.parameters()) > MOST_WEIGHTS or 0 in layers:
            return None
        torch.manual_seed(0)
        model = kind(config)
    except Exception:  # of families whose sizes go by other names there is one of every sort
        return None
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for module in linear_modules(model).values():
            if id(module.weight) not in tied:
                weight = weight_of(module)
                weight.copy_(prune_weight(weight.contiguous(), 0.7))
        for view in expert_views(model).values():
            view.weight.copy_(prune_weight(view.weight.contiguous(), 0.7))
    return model.to(torch.bfloat16).eval()


def assert_same(found: nn.Module, reference: nn.Module) -> int:
    """Every tensor of a model is that of the reference, packed or not; how many are packed."""
    packed = {name for name, m in found.named_modules() if isinstance(m, SparseLinear)}
    stacks = {name: m for name, m in found.named_modules() if isinstance(m, PackedStack)}
    assert packed
    for name in packed:
        expected = weight_of(reference.get_submodule(name))
        assert torch.equal(found.get_submodule(name).weight, expected.to(torch.bfloat16)), name
    for name, expected in [*reference.named_parameters(), *reference.named_buffers()]:
        layer, _, own = name.rpartition(".")
        if layer not in packed or own != "weight":
            if name in stacks:
                owner, stack = reference.get_submodule(layer), stacks[name]
                rows = stack.stack.unpack().unflatten(1, (len(stack.projections), -1))
                tensor = layout_of(owner).parameter(rows)
            else:
                tensor = found.get_parameter_or_buffer(name)
            assert torch.equal(tensor.nan_to_num(7), expected.nan_to_num(7)), name
    return len(packed) + len(stacks)


def loaded(kind, path, **options):
    return kind.from_pretrained(path, dtype=torch.bfloat16, output_loading_info=True, **options)


def round_of(model_type: str, folder: Path) -> str:
    model = built(model_type)
    if model is None:
        return NO_MODEL
    kind, dense = type(model), folder / "dense"
    model.save_pretrained(dense)
    reference, expected = loaded(kind, dense)
    if expected["missing_keys"]:
        return "transformers makes up a part of its own checkpoint"
    try:
        convert_checkpoint(dense, folder / "packed", pack_all=True)
    except CheckpointError as error:
        if "nothing" in str(error) or "no layer" in str(error):
            return "nothing to pack"
        raise
    found, told = loaded(kind, folder / "packed")
    assert told["missing_keys"] == set(), told
    assert told["unexpected_keys"] <= set(expected["unexpected_keys"]), told
    assert_same(found, reference)

    config = fs.FlashSparseConfig()
    found, _ = loaded(kind, dense, quantization_config=config)
    if not any(isinstance(module, SparseLinear) for module in found.modules()):
        return "nothing to pack at load"
    count = assert_same(found, reference)
    found.save_pretrained(folder / "saved")
    found, told = loaded(kind, folder / "saved")
    assert told["missing_keys"] == set(), told
    assert assert_same(found, reference) == count

    biases = {f"{name}.bias" for name, m in found.named_modules() if isinstance(m, SparseLinear)}
    present = sorted(biases & load_all(dense).keys())
    if present:
        shutil.copytree(dense, folder / "hole")
        edit_weights(folder / "hole", lambda tensors: tensors.pop(present[0]))
        layer = present[0].removesuffix(".bias")
        with pytest.raises(FormatError, match=f"{layer}': its bias "):
            loaded(kind, folder / "hole", quantization_config=config)
        with pytest.raises(CheckpointError, match=f"{layer}': its bias "):
            convert_checkpoint(folder / "hole", folder / "out")
    return "ok"


def test_the_table_has_every_family():
    assert table().keys() == {*CONFIG_MAPPING.keys()}
    assert sum(status == "ok" for status in table().values()) > 150


@pytest.mark.parametrize(
    "model_type", [each for each, status in table().items() if status != NO_MODEL]
)
def test_a_family_keeps_every_weight(model_type, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert round_of(model_type, tmp_path) == table()[model_type]


if __name__ == "__main__":  # writes the table anew; what is wrong shows as an error
    import sys
    import tempfile

    with TABLE_FILE.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["model_type", "status"])
        for each in sorted(CONFIG_MAPPING.keys()):
            with tempfile.TemporaryDirectory() as place:
                try:
                    rows.writerow([each, round_of(each, Path(place))])
                except Exception as error:
                    print(each, type(error).__name__, str(error)[:300], file=sys.stderr)
                    rows.writerow([each, "error"])
                out.flush()
