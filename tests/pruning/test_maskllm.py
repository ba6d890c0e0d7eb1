# SPDX-License-Identifier: Apache-2.0
"""MaskLLM's masks: applied as its own code does, and never trusted."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from checkpoints import load_all
from tiny_causal_lms import tiny_model
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from flashsparse_plugin.cli import app
from flashsparse_plugin.pruning import apply_masks, nm_keep_mask

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def linears():
    model = tiny_model("llama", torch.bfloat16)
    return {n: m.weight.detach() for n, m in model.named_modules() if n.endswith("_proj")}


@pytest.fixture(scope="module")
def masks(linears):
    """2:4 masks, as MaskLLM has them in memory: name of the mask -> float, 1 where kept."""
    torch.manual_seed(3)
    return {
        f"{name}.weight.mask": nm_keep_mask(torch.rand(weight.shape), 2, 4).float()
        for name, weight in linears.items()
    }


def save(path, masks):
    """Writes an archive as tool_compress_mask.py of MaskLLM does."""
    compressed = {name: np.packbits(mask.numpy().astype(bool)) for name, mask in masks.items()}
    np.savez_compressed(path, **compressed)
    return path


def test_the_weights_are_those_that_maskllm_makes(masks, linears, tmp_path):
    model = tiny_model("llama", torch.bfloat16)
    report = apply_masks(model, save(tmp_path / "m.npz", masks), progress=False)
    assert report.method == "maskllm" and report.sparsity == 0.5
    assert [layer.name for layer in report.layers] == [*linears]
    for name, mask in np.load(tmp_path / "m.npz").items():
        # What eval_llama_ppl.py of MaskLLM does.
        bits = torch.from_numpy(np.unpackbits(mask)).float()
        weight = linears[name.replace(".weight.mask", "")].clone()
        weight *= bits.view(*weight.shape)
        assert torch.equal(model.get_parameter(name.replace(".mask", "")), weight)


def test_layers_without_a_mask_or_ignored_stay_as_they_are(masks, linears, tmp_path):
    model = tiny_model("llama", torch.bfloat16)
    some = {name: mask for name, mask in masks.items() if "mlp" in name or Q in name}
    archive = save(tmp_path / "m.npz", some)
    report = apply_masks(model, archive, ignore=["lm_head", "re:.*down_proj"], progress=False)
    pruned = {layer.name for layer in report.layers}
    assert Q in pruned and not any("down_proj" in name for name in pruned)
    for name, weight in linears.items():
        assert torch.equal(model.get_submodule(name).weight, weight) == (name not in pruned)
    with pytest.raises(ValueError, match="a mask for none of the layers"):
        apply_masks(model, archive, ignore=["lm_head", "re:.*mlp", Q])


def test_the_command_writes_the_model(masks, tmp_path):
    tiny_model("llama", torch.bfloat16).save_pretrained(tmp_path / "dense")
    archive = save(tmp_path / "m.npz", masks)
    arguments = ["prune", str(tmp_path / "dense"), str(tmp_path / "out"), "--mask", str(archive)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["sparsity"] == 0.5
    before, after = load_all(tmp_path / "dense"), load_all(tmp_path / "out")
    for name, weight in before.items():
        mask = masks.get(f"{name}.mask")
        expected = weight if mask is None else weight.masked_fill(mask == 0, 0)
        assert torch.equal(after[name], expected), name


@pytest.mark.parametrize("more", ["--sparsity=0.5", "--vector-length=4", "--method=magnitude"])
def test_the_command_takes_no_method_beside_masks(masks, tmp_path, more):
    tiny_model("llama", torch.bfloat16).save_pretrained(tmp_path / "dense")
    archive = save(tmp_path / "m.npz", masks)
    arguments = ["prune", str(tmp_path / "dense"), str(tmp_path / "out"), "--mask", str(archive)]
    result = CliRunner().invoke(app, [*arguments, more], env={"COLUMNS": "400"})
    assert result.exit_code == 2 and f"leave {more.partition('=')[0]} out" in result.stderr


def array(data, dtype=np.uint8):
    made = io.BytesIO()
    np.lib.format.write_array(made, np.asarray(data, dtype), version=(1, 0))
    return made.getvalue()


def huge():
    """An array whose header promises a terabyte."""
    made = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(made, header)
    return made.getvalue()


def objects():
    made = io.BytesIO()
    np.lib.format.write_array(made, np.array([print], object), allow_pickle=True)
    return made.getvalue()


NAME = f"{Q}.weight.mask.npy"
BYTES = 32 * 32 // 8
HOSTILE = {
    "other-layer": ({"model.layers.9.self_attn.q_proj.weight.mask.npy": b""}, "no linear layer"),
    "other-name": ({f"{Q}.weight.npy": b""}, "no linear layer"),
    "outside": ({"../../etc/passwd": b""}, "no linear layer"),
    "short": ({NAME: array([0] * (BYTES - 1))}, r"uint8 \[127\] instead of uint8 \[128\]"),
    "long": ({NAME: array([0] * (BYTES + 1))}, r"uint8 \[129\] instead"),
    "bomb": ({NAME: array([0] * 10**6)}, "of 1,000,128 bytes"),
    "promise": ({NAME: huge()}, r"\[1000000000000\] instead"),
    "bools": ({NAME: array([0] * BYTES, bool)}, "bool"),
    "matrix": ({NAME: array([[0]] * BYTES)}, r"\[128, 1\] instead"),
    "pickle": ({NAME: objects()}, "object"),
    "cut": ({NAME: array([0] * BYTES)[:-5]}, "123 bytes instead of 128"),
    "no-array": ({NAME: b"not an array"}, "cannot be read"),
    "empty": ({NAME: b""}, "cannot be read"),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_hostile_archive_is_refused_by_name(damage, tmp_path):
    entries, rule = HOSTILE[damage]
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    model = tiny_model("llama", torch.bfloat16)
    assert model.get_submodule(Q).weight.shape == (32, 32)
    with pytest.raises(ValueError, match=f"m.npz has a mask '.*{rule}"):
        apply_masks(model, tmp_path / "m.npz", progress=False)


def test_a_mask_that_is_there_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr(NAME, array([0] * BYTES))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(NAME, array([255] * BYTES))
    with pytest.raises(ValueError, match="a second time"):
        apply_masks(tiny_model("llama", torch.bfloat16), tmp_path / "m.npz", progress=False)


def test_a_flipped_bit_is_found(masks, tmp_path):
    archive = save(tmp_path / "m.npz", masks)
    data = bytearray(archive.read_bytes())
    data[200] ^= 0x40
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="damaged|cannot be read|no archive"):
        apply_masks(tiny_model("llama", torch.bfloat16), archive, progress=False)


def test_bits_beyond_the_last_element_are_refused(tmp_path):
    sizes = dict(hidden_size=15, num_attention_heads=3, num_key_value_heads=1, head_dim=6)
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=8))
    mask = np.packbits(np.ones(18 * 15, bool))  # 2 bits of the last byte are not used
    np.savez_compressed(tmp_path / "m.npz", **{f"{Q}.weight.mask": mask | 1})
    with pytest.raises(ValueError, match="bits beyond its last element"):
        apply_masks(model, tmp_path / "m.npz", progress=False)
    np.savez_compressed(tmp_path / "m.npz", **{f"{Q}.weight.mask": mask})
    assert apply_masks(model, tmp_path / "m.npz", progress=False).zeros == 0


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "m.npz").write_bytes(b"\x93NUMPY and more")
    with pytest.raises(ValueError, match="is no archive of masks"):
        apply_masks(tiny_model("llama", torch.bfloat16), tmp_path / "m.npz", progress=False)
