# SPDX-License-Identifier: Apache-2.0
"""A layer that no kernel multiplies is told of: where it is loaded, converted and looked at."""

import pytest
import torch

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.unpacked import complaints, complaints_anywhere, has_kernel
from flashsparse_plugin.formats import all_formats, get_format
from flashsparse_plugin.gpu import GPUS

PATTERNS = [(2, 4, 1), (4, 4, 1), (3, 5, 2), (8, 32, 8), (8, 32, 32), (1, 1, 128)]
VALUES = [{}, {"values": "int8"}, {"values": "int4"}, {"values": "int8", "group": 64}]
OWN = [
    get_format("nm_vector").scheme(dtype, {"n": n, "m": m, "vector_length": length, **values})
    for dtype in (torch.bfloat16, torch.float32)
    for n, m, length in PATTERNS
    for values in VALUES
    if "group" not in values or 64 % m == 0
]
SCHEMES = [s for f in all_formats() if f.on_disk for s in f.examples()] + OWN
DEVICES = [torch.device("cpu"), torch.device("cuda")]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_scheme_has_a_kernel_or_is_told_of(scheme):
    """The form that a device holds says what multiplies it; torch on the dense weight is none."""
    for device in DEVICES:
        held = scheme.format.runtime(scheme, device)
        unpacks = list(held.format.implementations(held)) == ["library"]
        unpacks = unpacks and not (device.type == "cpu" and held.format.has_cpu_kernel)
        found = list(complaints([("a", scheme), ("b", scheme)], device))
        assert len(found) == unpacks == (not has_kernel(scheme, device))
        if unpacks:
            assert "layer 'a' and 1 more" in found[0] and str(scheme) in found[0]
            assert "Remedy: " in found[0] and "ignore=" in found[0]


def test_what_is_known_to_be_slow_and_what_is_not():
    of = get_format("nm_vector").scheme
    slow = of(torch.bfloat16, {"n": 4, "m": 4, "values": "int8"})
    head = of(torch.bfloat16, {"n": 1, "m": 1, "vector_length": 128, "values": "int8"})
    (found,) = complaints_anywhere([("lm_head", slow), ("other", head)])
    assert "on a GPU: layer 'lm_head' is" in found and "2:4-int8" in found
    for gpu in GPUS:
        assert has_kernel(head, DEVICES[1], gpu) and not has_kernel(slow, DEVICES[1], gpu)


def test_convert_and_inspect_say_so(tmp_path):
    from checkpoints import save_llama

    from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint

    dense, options = save_llama(tmp_path / "dense"), {"n": 4, "m": 4, "values": "int8"}
    report = convert_checkpoint(dense, tmp_path / "out", format="nm_vector", options=options)
    notes = inspect_checkpoint(tmp_path / "out").notes
    for lines in (report.warnings, notes):
        (line,) = [each for each in lines if "no kernel" in each]
        assert "model.layers.0.self_attn.q_proj' and 13 more" in line


def test_transformers_says_so(tmp_path, caplog, monkeypatch):
    from checkpoints import save_llama
    from transformers import AutoModelForCausalLM

    from flashsparse_plugin.dataflow import unpacked

    config = fs.FlashSparseConfig(format="nm_vector", options={"n": 4, "m": 4, "values": "int8"})
    dense = save_llama(tmp_path / "dense", num_hidden_layers=1)
    monkeypatch.setattr(unpacked, "has_kernel", lambda *of: False)
    AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
    found = [each.getMessage() for each in caplog.records if "no kernel" in each.getMessage()]
    assert len(found) == 1 and "on a CPU" in found[0] and "and 6 more" in found[0]
