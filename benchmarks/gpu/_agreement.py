# SPDX-License-Identifier: Apache-2.0
"""Do two servers give the same greedy tokens, up to what rounding moves?"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from _device import _server

COMPARED = (8, 64)  # prompts, and tokens of each
PROMPT = 64  # tokens
Text = dict[str, Any]


def texts_of(url: str, words: int) -> dict[str, list[Text]]:
    """Greedy texts of random prompts: all at once, and one by one.

    Args:
        url: Of a server that returns raw logits as its log probabilities.
        words: Size of the vocabulary.
    """
    count, tokens = COMPARED
    generator = torch.Generator().manual_seed(count)
    prompts = torch.randint(3, words, (count, PROMPT), generator=generator).tolist()
    with ThreadPoolExecutor(count) as pool:
        at_once = list(pool.map(lambda prompt: _text(url, prompt, tokens), prompts))
    return {"at_once": at_once, "one_by_one": [_text(url, each, tokens) for each in prompts]}


def _text(url: str, prompt: Sequence[int], tokens: int) -> Text:
    """The tokens after a prompt, and the logits of the best two at each step."""
    body = {"model": _server.NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    asked = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=_server.PATIENCE) as answer:
        [choice] = json.load(answer)["choices"]
    steps = choice["logprobs"]["top_logprobs"]
    best = [sorted(step.values(), reverse=True)[:2] for step in steps]
    return {"tokens": choice["token_ids"], "best_two": best}


def _follow(a: Text, b: Text) -> tuple[int, float | None, float]:
    """Follows two greedy texts of one prompt while their contexts are the same.

    Returns:
        How many tokens are equal; the gap between the logits of the best two where the texts
        diverge, None if they do not; and the largest change of that gap between the texts.
    """
    shift = 0.0
    for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"], strict=True)):
        gap, other = (best - second for best, second in (a["best_two"][i], b["best_two"][i]))
        if x != y:  # the best two have swapped
            return i, gap, max(shift, gap + other)
        shift = max(shift, abs(gap - other))
    return len(a["tokens"]), None, shift


def compare(dense: dict[str, list[Text]], sparse: dict[str, list[Text]]) -> dict[str, Any]:
    """Whether rounding explains where the greedy tokens of dense and sparse diverge.

    Texts may diverge where the best two candidates are closer than the rounding to 16 bits, and
    have nothing in common after that. The effect of rounding is measured with dense weights alone,
    whose sums are added in another order when the prompts come one by one: a divergence is
    explained if the gap is at most twice the largest change of a gap there, or two steps of
    bfloat16 at the best logit.
    """
    alone = [_follow(*pair) for pair in zip(dense["at_once"], dense["one_by_one"], strict=True)]
    found = [_follow(*pair) for pair in zip(dense["at_once"], sparse["at_once"], strict=True)]
    largest = max(abs(best) for text in dense["at_once"] for best, _ in text["best_two"])
    step = 2.0 ** (math.floor(math.log2(largest)) - 7)
    tolerance = 2 * max(step, *(shift for *_, shift in alone))
    gaps = [gap for _, gap, _ in found if gap is not None]
    return {
        "compared_tokens": COMPARED[0] * COMPARED[1],
        "same_tokens": sum(same for same, *_ in found),
        "same_tokens_dense_one_by_one": sum(same for same, *_ in alone),
        "gaps_where_parted": gaps,
        "largest_shift": max(shift for *_, shift in found),
        "tolerance": tolerance,
        "explained_by_rounding": all(gap <= tolerance for gap in gaps),
    }
