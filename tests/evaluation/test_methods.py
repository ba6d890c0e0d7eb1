# SPDX-License-Identifier: Apache-2.0
"""What is made of a dense model in memory: its bytes, and that it is made of every layer."""

import pytest
import torch
from tiny_causal_lms import tiny_model

from flashsparse_plugin.evaluation import method_names, parse_method, sizes
from flashsparse_plugin.evaluation.measure import what_runs
from flashsparse_plugin.packed import FormatError
from flashsparse_plugin.pruning import prune

IDS = torch.arange(3, 27)[None]
WEIGHTS = 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)  # of the tiny Llama, without its head


def made(text: str, pruned: bool = False):
    """The model with a method applied, its logits before, and its sizes."""
    method = parse_method(text)
    model = tiny_model("llama", method.dtype or torch.bfloat16)
    if pruned:
        prune(model, "magnitude", pattern=(2, 4), progress=False)
    names = sizes.linear_names(model)
    count = sizes.count(model, names)
    with torch.no_grad():
        before = model(IDS).logits.float()
    method.apply(model, names)
    return model, before, sizes.sizes_of(model, names, count)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.float()


def test_the_head_is_not_counted_and_the_rest_is():
    model = tiny_model("llama", torch.bfloat16)
    names = sizes.linear_names(model)
    assert "lm_head" not in names
    assert sizes.count(model, names) == WEIGHTS
    assert sizes.sizes_of(model, names, WEIGHTS) == sizes.Sizes(WEIGHTS, 2 * WEIGHTS, 2 * WEIGHTS)


def test_packing_changes_bytes_and_nothing_else():
    model, before, found = made("nm_vector:n=2:m=4", pruned=True)
    assert torch.allclose(logits(model), before, atol=2e-2)
    assert found.bits == pytest.approx(8 + 1, abs=0.2)  # half the values, 2 bits of position each
    names = sizes.linear_names(model)
    assert sizes.zeros(model, names) == WEIGHTS // 2
    assert sizes.count(model, names) == WEIGHTS


def test_torch_int8_has_a_byte_a_weight_and_scales():
    model, before, found = made("torch_int8")
    scales = 4 * sum(rows for rows in (32, 16, 16, 32, 48, 48, 32)) * 3
    assert found.memory == found.disk == pytest.approx(WEIGHTS + scales, rel=0.02)
    assert 0 < (logits(model) - before).abs().max() < 0.1


def test_torchao():
    pytest.importorskip("torchao")
    model, before, found = made("torchao_int8")
    assert 8 < found.bits < 9.5  # scales of short rows count
    assert (logits(model) - before).abs().max() < 0.1
    # torchao itself would leave these layers as they are.
    with pytest.raises(FormatError, match=r"down_proj': its 48 columns .* group of 32"):
        made("torchao_int4:group=32")


@pytest.mark.parametrize(("type", "bits", "worst"), [("q4_0", 4.5, 0.15), ("q8_0", 8.5, 0.01)])
def test_gguf_has_the_bytes_and_the_values_of_its_codes(type, bits, worst):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 8))
    weight, bias = (each.detach().clone() for each in (model[0].weight, model[0].bias))
    parse_method(f"gguf:type={type}").apply(model, ["0"])
    assert sizes.sizes_of(model, ["0"], weight.numel()).bits == bits
    x = torch.eye(64)
    made = (model[0](x) - bias).T
    assert 0 < (made - weight).abs().max() < worst * weight.abs().max()
    with pytest.raises(FormatError, match=r"'1': its 48 columns are no multiple of 32"):
        parse_method("gguf").apply(model, ["1"])


def test_what_runs_is_told_of_fp8():
    model, before, _ = made("fp8")
    assert what_runs(model).startswith("torch's linear on the dequantized weights, not timed")
    assert 0 < (logits(model) - before).abs().max() < 0.1


def test_fp8_rounds_both_sides_as_servers_do():
    """Of both sides the largest magnitude of a row is exact, and what is far below it is zero."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 48)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    model = torch.nn.Sequential(layer)
    parse_method("fp8").apply(model, ["0"])
    assert sizes.sizes_of(model, ["0"], weight.numel()).bits == 8 + 32 / 64
    made = (model(torch.eye(64)) - bias).T
    largest = weight.abs().amax(1, keepdim=True)
    assert torch.allclose(made.abs().amax(1, keepdim=True), largest)
    off = ((made - weight) / largest).abs()
    assert 0 < off.max() <= 2**-4
    x = torch.eye(64) + 2.0**-20  # too small beside the one
    assert torch.allclose((model(x) - bias).T, made)


def test_a_weight_that_does_not_fit_is_named():
    with pytest.raises(FormatError, match=r"layer 'model.layers.0.self_attn.q_proj'.* 2:4"):
        made("nm_vector:n=2:m=4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("awq", r"no method 'awq'; there are tiled_csl, .*, nm_vector, hybrid_24, .*torch_int8"),
        ("nm_vector:n=5:m=4", "5:4 is no pattern"),
        ("nm_vector:n", "'n' of the method .* is not OPTION=VALUE"),
        ("torch_int8:group=32", "torch_int8 has no option 'group'"),
        ("gguf:type=q4_k", "q4_k is not one of q4_0, q4_1, q5_0, q5_1, q8_0"),
        ("torchao_int4:group=33", "33 is not one of 32, 64, 128, 256"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_method(text)


def test_what_cannot_run_says_so_beforehand(monkeypatch):
    monkeypatch.setattr("flashsparse_plugin.evaluation.rivals.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install 'torchao"):
        parse_method("torchao_int8").require("cpu")
    monkeypatch.undo()
    monkeypatch.setattr("flashsparse_plugin.evaluation.rivals.util.find_spec", lambda name: name)
    with pytest.raises(ValueError, match=r"capability 8.9 or newer, and this is a CPU"):
        parse_method("torchao_fp8").require("cpu")
    with pytest.raises(ValueError, match="CPUs only"):
        parse_method("torch_int8").require("cuda")
    for name in method_names():
        if name not in ("nm_vector", "exact_nm"):  # which want n and m
            parse_method(name)
