# SPDX-License-Identifier: Apache-2.0
"""phi is the best there is, and costs what calibration says; what has no phi gets none."""

import json
import math
import os

import pytest
import torch
from tiny_causal_lms import tiny_model

from flashsparse_plugin.attention import unified_max_of
from flashsparse_plugin.attention.calibration import (
    Histogram,
    LayerScores,
    calibrate,
    finding,
    write_entry,
)
from flashsparse_plugin.ops import ops

BOUNDS = {  # of a part's sum, and of each of its terms: docs/attention.md, "The guard"
    "bfloat16": (2.0**-60, 2.0**60, math.inf),
    "float16": (2.0**-4, 2.0**60, 65504.0),
}


def random_scores(spread, tokens=300, heads=3):
    """Of decode steps 0, 1, ..., each with the positions before it; heads lie apart."""
    generator = torch.Generator().manual_seed(0)
    scores = spread * torch.randn(heads, tokens, tokens, generator=generator)
    scores += torch.tensor([-40.0, 0.0, 100.0])[:heads, None, None]
    return scores.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), -torch.inf)


def seen(scores):
    """As it comes from attention: a few rows at a time, and a head apart."""
    layer = LayerScores(len(scores))
    for head in range(len(scores)):
        for rows in scores[head].split(128):
            layer.add(head, rows[None])
    return layer


def parts_of(scores):
    """The scores of each head's parts, cut by the words of the CUDA kernel's find_split."""
    for head, rows in enumerate(scores.double()):
        for row in rows:
            position = torch.arange(len(row))
            for split in range(0, len(row), 256):
                for warp in range(4):
                    mine = (position // 256 == split // 256) & (position // 16 % 4 == warp)
                    part = row[mine & (row > -torch.inf)]
                    if len(part):
                        yield head, part


def share_that_fails(parts, phi, dtype):
    least, most, term = BOUNDS[dtype]
    failed = 0
    for head, part in parts:
        terms = (part - phi[head]).exp()
        failed += not (least <= terms.sum() < most and terms.max() <= term)
    return failed / len(parts)


@pytest.mark.parametrize(("dtype", "spread"), [("bfloat16", 20.0), ("float16", 3.5)])
def test_the_share_is_that_of_the_kernels_parts_and_no_phi_is_better(dtype, spread):
    scores = random_scores(spread, tokens=270)
    found = finding(seen(scores), dtype)
    parts = list(parts_of(scores))
    exact = share_that_fails(parts, found.reference.phi, dtype)
    assert 0.002 < exact <= found.reference.recomputed < 1.3 * exact + 0.002
    for step in (-4.0, -1.0, 1.0, 4.0):
        others = [phi + step for phi in found.reference.phi]
        assert share_that_fails(parts, others, dtype) > exact - 0.001
    for phi, middle in zip(found.reference.phi, (-40.0, 0.0, 100.0), strict=True):
        assert abs(phi - middle) < 4 * spread


def test_the_share_is_what_the_op_counts():
    """Up to 16 tokens a sequence is one part on any device."""
    generator = torch.Generator().manual_seed(1)
    tokens, heads = 16, 64
    query, key = (50 * torch.randn(tokens, heads, 64, generator=generator) for _ in range(2))
    keys = key.transpose(0, 1).expand(tokens, -1, -1, -1).contiguous()
    lengths = torch.arange(1, tokens + 1, dtype=torch.int32)
    scale = 1 / 400
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    later = ~torch.ones(tokens, tokens, dtype=torch.bool).tril()
    reference = finding(seen(scores.masked_fill(later, -torch.inf)), "bfloat16").reference
    phi = torch.tensor(reference.phi)
    _, recomputed = ops.unified_max_decode(query, keys, keys, lengths, scale=scale, phi=phi)
    width = Histogram.WIDTH  # a bin across a bound counts as failing
    low, high = (sign * (60 * math.log(2) - width) for sign in (-1, 1))
    _, most = ops.unified_max_decode(
        query, keys, keys, lengths, scale=scale, phi=phi, low=low, high=high
    )
    expected = reference.recomputed * tokens * heads
    assert 0 < recomputed.sum() <= round(expected) <= most.sum()


def test_the_histogram_is_exact():
    scores = random_scores(5.0, heads=2)
    scores[0, 7, 3], scores[1, 9, 9] = -700.0, 600.0  # beyond both ends
    layer = seen(scores)
    for head in range(2):
        values = scores[head][scores[head] > -torch.inf]
        edges = torch.arange(Histogram.BINS + 1) * Histogram.WIDTH - Histogram.REACH
        expected = torch.searchsorted(edges, values, right=True).bincount(minlength=len(edges) + 1)
        expected = expected[1:-1]
        assert torch.equal(layer.scores.counts[head, 1:-1], expected)
        assert layer.scores.counts[head, [0, -1]].tolist() == [1 - head, head]
        assert (layer.least[head], layer.most[head]) == (values.min(), values.max())


def test_the_range_holds_what_it_says():
    scores = random_scores(5.0)
    found = finding(seen(scores), "bfloat16")
    values = scores[scores > -torch.inf]
    low, high = found.held
    assert 0.9999 <= ((values >= low) & (values <= high)).double().mean() < 0.99999
    around = scores - torch.tensor(found.reference.phi)[:, None, None]
    around = around[around > -torch.inf]
    held = (around >= found.reference.a) & (around <= found.reference.b)
    assert 0.9999 <= held.double().mean() < 0.99999
    assert (found.least, found.most) == (values.min(), values.max())


WINDOWS = torch.arange(3, 51).view(2, 24)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "phi3", "gemma2", "gpt_neox", "opt"])
def test_the_model_runs_as_ever(name):
    """The same states as with its own attention, which is put back afterwards."""
    model = tiny_model(name)
    model.set_attn_implementation("eager")
    states = []
    body = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        expected = body(WINDOWS[1:])[0]
    handle = body.register_forward_hook(lambda module, args, out: states.append(out[0]))
    found = calibrate(model, WINDOWS, "bfloat16")
    handle.remove()
    assert model.config._attn_implementation == "eager"
    torch.testing.assert_close(states[1], expected, rtol=1e-4, atol=1e-4)
    assert (found.tokens, len(found.layers)) == (48, 3)
    entry = unified_max_of({"unified_max": found.entry(0.01, "some").model_dump()})
    assert [len(entry.layer(number, 4).phi) for number in range(3)] == [4, 4, 4]
    # What each step looks at, in sliding windows of 8 and without.
    windows = {"mistral": [8, 8, 8], "gemma2": [8, 24, 8]}.get(name, [24, 24, 24])
    for layer, reach in zip(found.layers, windows, strict=True):
        assert layer.counts.sum() == 2 * 4 * sum(min(step + 1, reach) for step in range(24))


def spread(model, layers, factor):
    with torch.no_grad():
        for number in layers:
            model.model.layers[number].self_attn.q_proj.weight.mul_(factor)
    return model


def test_layers_with_spread_scores_get_no_phi():
    found = calibrate(spread(tiny_model("llama"), [1], 1e6), WINDOWS, "bfloat16")
    assert found.refused(0.01) == [1]
    entry = found.entry(0.01)
    assert entry.layers[1] is None and entry.layers[0] and entry.layers[2]


def test_a_model_with_many_such_layers_gets_no_entry():
    found = calibrate(spread(tiny_model("llama"), [0, 2], 1e6), WINDOWS, "bfloat16")
    with pytest.raises(ValueError, match="2 of 3 layers are spread too widely.*online softmax"):
        found.entry(0.01)
    assert found.entry(1.0).layers[0].recomputed > 0.01


def test_scores_that_are_no_numbers_are_an_error():
    with pytest.raises(ValueError, match="layer 1: softmax inputs are infinite or NaN"):
        calibrate(spread(tiny_model("llama"), [1], math.nan), WINDOWS, "bfloat16")


def test_the_attention_is_put_back_after_an_error():
    model = spread(tiny_model("llama"), [1], math.nan)
    before = model.config._attn_implementation
    with pytest.raises(ValueError):
        calibrate(model, WINDOWS, "bfloat16")
    assert model.config._attn_implementation == before != "unified_max_calibration"


@pytest.mark.parametrize("nested", [False, True])
def test_only_the_entry_is_written(tmp_path, nested):
    path = tmp_path / "config.json"
    text = {"num_attention_heads": 4, "z": [1.5, None], "a": "ü"}
    before = {"model_type": "x", "text_config": text, "other": 1} if nested else text
    path.write_text(json.dumps(before, ensure_ascii=False))
    os.chmod(path, 0o640)
    for _ in range(2):
        write_entry(calibrate(tiny_model("llama"), WINDOWS, "float16").entry(1.0), path)
    after = json.loads(path.read_text())
    holder = after["text_config"] if nested else after
    assert unified_max_of(holder).dtype == "float16" and "ü" in path.read_text()
    del holder["unified_max"]
    assert after == before and list(holder) == list(text)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert path.stat().st_mode & 0o777 == 0o640
