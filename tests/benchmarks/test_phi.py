# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a calibrated phi in vLLM, with engines that answer at once."""

import itertools
import json
import os
import sys
from types import SimpleNamespace

import _results
import phi
import pytest
from _models import SHAPES, make_config

WORDS = 200  # of the text


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Runs the program on engines that write what a function says; returns what it wrote."""
    folder = tmp_path / "model"
    make_config(SHAPES["tiny"], folder)
    path = folder / "config.json"
    layers = [{"phi": [0.0] * 4, "a": -1, "b": 1, "recomputed": 0}, None]
    entry = {"version": 1, "dtype": "bfloat16", "layers": layers}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"unified_max": entry}))
    text, out = tmp_path / "text.txt", tmp_path / "phi.csv"
    text.write_text(" ".join(f"w{number + 3}" for number in range(WORDS)))

    def run(token=lambda options, prompt: prompt[-1]):
        engines, count = [], itertools.count()

        def engine(model, options, *sizes):
            engines.append(options)
            return SimpleNamespace(options=options)

        def continued(llm, prompts, tokens, logprobs=None):
            return [
                SimpleNamespace(
                    token_ids=[token(llm.options, prompt)] * tokens,
                    logprobs=[{1: SimpleNamespace(logprob=9.0), 2: SimpleNamespace(logprob=5.0)}]
                    * tokens,
                )
                for prompt in prompts
            ]

        monkeypatch.setattr(phi, "engine", engine)
        monkeypatch.setattr(phi, "alone", lambda function, *given: function(*given))
        monkeypatch.setattr(phi, "close", lambda llm: None)
        monkeypatch.setattr(phi, "continued", continued)
        # As often as it is asked: before the prompts, and after them.
        monkeypatch.setattr(phi, "counters", lambda: {"a": (0, 6), "b": (next(count) * 5, 7)})
        given = f"{folder} --text {text} --sequences 8 --prompt 16 --rounds 1 --out {out}"
        monkeypatch.setattr(sys, "argv", ["phi.py", *given.split()])
        phi.main()
        return _results.read(out), engines

    return run


def test_each_attention_has_a_line_and_a_further_engine_counts(ran):
    result, engines = ran()
    assert engines == [*phi.ATTENTION.values(), phi.ATTENTION[phi.PHI]]
    assert [row["attention"] for row in result["rows"]] == [phi.VLLM, phi.OURS, phi.PHI]
    assert all(row["same_tokens"] == 8 * 64 and row["explained"] for row in result["rows"])
    about = result["about"]
    assert (about["recomputed"], about["rows_of_softmax"]) == (5, 0)
    assert (about["most_in"], about["phi_layers"]) == ("b", 1)


def test_other_tokens_than_rounding_explains_fail(ran):
    with pytest.raises(SystemExit):
        ran(lambda options, prompt: len(str(options)))


def test_each_engine_has_a_process_of_its_own():
    pids = {os.getpid(), phi.alone(os.getpid), phi.alone(os.getpid)}
    assert len(pids) == 3


def test_prompts_are_the_end_of_the_text(tmp_path):
    make_config(SHAPES["tiny"], tmp_path)
    text = " ".join(f"w{number}" for number in range(3, 103))
    assert phi.prompts_of(tmp_path, text, 2, 4) == [[95, 96, 97, 98], [99, 100, 101, 102]]
    with pytest.raises(SystemExit, match="100 tokens, not 2 x 64"):
        phi.prompts_of(tmp_path, text, 2, 64)
