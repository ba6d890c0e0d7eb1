# SPDX-License-Identifier: Apache-2.0
"""The benchmark of transformers' generate without CUDA graphs, without a GPU."""

import sys

import _results
import generate
import pytest
import torch
from _models import SHAPES, random_model


def test_a_toy_run_has_a_line_for_each_method(tmp_path, monkeypatch):
    path = tmp_path / "found.csv"
    given = f"--shape tiny --device cpu --tokens 2 --turns 1 --out {path}"
    monkeypatch.setattr(sys, "argv", ["generate.py", *given.split()])
    generate.main()
    dense, own, *packed = _results.read(path)["rows"]
    assert dense["method"] == "dense" and dense["ratio"] == 1
    assert own["method"] == "dense, decode kernels"
    zeros = {"tiled_csl": "80%", "nm_vector(2:4)": "2:4"}
    assert zeros.items() <= {row["method"]: row["zeros"] for row in packed}.items()
    assert len(packed) == len(generate.METHODS) and all(row["tokens_s"] > 0 for row in packed)


def test_a_packed_model_that_says_something_else_is_not_timed(monkeypatch):
    model = random_model(SHAPES["tiny"], torch.device("cpu"))
    ids = torch.arange(8)[None]
    generate.packed(model, "tiled_csl", {"sparsity": 0.8}, ids)
    linear = generate.parse_method("tiled_csl").__class__.apply

    def spoiled(self, model, names):
        linear(self, model, names)
        model.lm_head.weight.data.neg_()

    monkeypatch.setattr(generate.parse_method("tiled_csl").__class__, "apply", spoiled)
    with pytest.raises(SystemExit, match="logits differ by 200"):
        generate.packed(model, "tiled_csl", {"sparsity": 0.8}, ids)
