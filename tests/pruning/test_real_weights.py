# SPDX-License-Identifier: Apache-2.0
"""Pruning a real model does to its predictions what the literature says it does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.loading import load_model, load_tokenizer
from flashsparse_plugin.pruning import calibration_windows, prune


@pytest.mark.slow
def test_perplexities_are_in_the_order_of_the_methods(smollm2_dir, shakespeare):
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    held_out = shakespeare[-20_000:]
    windows = calibration_windows(tokenizer, shakespeare[:200_000], samples=4, length=64)

    def measure(**pruning):
        model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
        if pruning:
            report = prune(model, progress=False, **pruning)
            assert report.sparsity == pytest.approx(pruning["sparsity"], abs=1e-3)
        return perplexity(model, tokenizer, held_out, context=128, max_tokens=256)

    dense = measure()
    wanda = measure(method="wanda", sparsity=0.5, calibration=windows)
    magnitude = measure(method="magnitude", sparsity=0.5)
    too_much = measure(method="magnitude", sparsity=0.8)
    assert 20 < dense < 80  # it knows English, though not of this age
    assert 1.2 * dense < wanda < 3 * dense
    assert 2 * wanda < magnitude
    assert 100 * magnitude < too_much


def test_the_small_story_model_reads_a_book(stories15m_dir, book):
    """Its weights and its tokenizer are put together by demo/stories15m.py, from other files."""
    model, tokenizer = load_model(stories15m_dir), load_tokenizer(stories15m_dir)
    found = perplexity(model, tokenizer, book.read_text(), context=256, max_tokens=1024)
    assert 150 < found < 250  # a wrong order of weights or tokens gives thousands
