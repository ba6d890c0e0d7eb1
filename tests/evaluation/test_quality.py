# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from tiny_causal_lms import VOCAB, character_tokenizer, tiny_model

from flashsparse_plugin.evaluation import perplexity

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom."


def by_hand(model, windows):
    """Each token's probability looked up one by one, in float64."""
    logs = []
    with torch.no_grad():
        for window in windows:
            probabilities = model(torch.tensor([window])).logits[0].double().softmax(-1)
            logs += [math.log(probabilities[i, token]) for i, token in enumerate(window[1:])]
    return math.exp(-sum(logs) / len(logs))


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_equals_the_probabilities_multiplied_by_hand(batch_size):
    model, tokenizer = tiny_model("llama"), character_tokenizer()
    ids = tokenizer(TEXT).input_ids
    windows = [ids[:16], ids[16:32], ids[32:48], ids[48:64]]  # the tail of 14 is dropped
    assert len(ids) == 78
    expected = by_hand(model, windows)
    found = perplexity(model, tokenizer, TEXT, context=16, batch_size=batch_size)
    assert found == pytest.approx(expected, rel=1e-5)


def test_bos_begins_every_window_where_the_tokenizer_adds_it():
    model, tokenizer = tiny_model("llama"), character_tokenizer(bos=True)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    expected = by_hand(model, [[1, *ids[:15]], [1, *ids[15:30]]])
    found = perplexity(model, tokenizer, TEXT, context=16, max_tokens=30)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large():
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    found = perplexity(model, character_tokenizer(), TEXT, context=16)
    assert found == pytest.approx(VOCAB, rel=1e-5)


def test_a_short_text_is_one_window():
    model, tokenizer = tiny_model("llama"), character_tokenizer()
    expected = by_hand(model, [tokenizer(TEXT[:9]).input_ids])
    assert perplexity(model, tokenizer, TEXT[:9]) == pytest.approx(expected, rel=1e-5)


def test_the_training_flag_is_restored():
    model = tiny_model("llama").train()
    perplexity(model, character_tokenizer(), TEXT, context=16)
    assert model.training


@pytest.mark.parametrize(("text", "context"), [("", 16), ("a", 16), (TEXT, 1), (TEXT, 0)])
def test_nothing_to_predict_is_an_error(text, context):
    with pytest.raises(ValueError, match="nothing to predict"):
        perplexity(tiny_model("llama"), character_tokenizer(), text, context=context)


def test_a_window_beyond_the_context_is_an_error():
    with pytest.raises(ValueError, match="context of 64"):
        perplexity(tiny_model("llama"), character_tokenizer(), TEXT, context=65)
