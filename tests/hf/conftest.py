# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tiny models, made once: `dense`, `masked` (dense with zeros) and `packed`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoTokenizer

import flashsparse_plugin as fs

torch.set_num_threads(1)  # these models are too small to share, and threads that wait cost more


@dataclass(frozen=True)
class Checkpoints:
    dense: Path
    masked: Path
    packed: Path


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """checkpoints(architecture) -> Checkpoints; not to be written to."""

    @cache
    def make(architecture: str) -> Checkpoints:
        root = tmp_path_factory.mktemp(architecture)
        model = tiny.build(architecture)
        model.save_pretrained(root / "dense")
        tiny.masked_(model).save_pretrained(root / "masked")
        packed = tiny.load(
            root / "masked", torch.bfloat16, quantization_config=fs.FlashSparseConfig()
        )
        packed.save_pretrained(root / "packed")
        return Checkpoints(root / "dense", root / "masked", root / "packed")

    return make


@pytest.fixture(scope="session")
def llama(checkpoints):
    return checkpoints("llama-gqa-bias")


@pytest.fixture
def packed_copy(llama, tmp_path):
    """A packed checkpoint to damage."""
    return Path(shutil.copytree(llama.packed, tmp_path / "copy"))


@pytest.fixture(scope="session")
def wanted(llama):
    """The tokens of the masked dense model in float32."""
    tokens = tiny.generate(tiny.load(llama.masked))
    assert len(torch.unique(tokens[:, 9:])) > 3  # a model that repeats one token proves nothing
    return tokens


@pytest.fixture(scope="session")
def real_dir(smollm2_dir, tmp_path_factory):
    """The first layers of a real model: what follows them does the same once more."""
    path = tmp_path_factory.mktemp("real") / "model"
    real = tiny.load(smollm2_dir, torch.bfloat16, num_hidden_layers=tiny.REAL_LAYERS)
    real.save_pretrained(path)
    AutoTokenizer.from_pretrained(smollm2_dir).save_pretrained(path)
    return path
