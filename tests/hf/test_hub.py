# SPDX-License-Identifier: Apache-2.0
"""`from_pretrained` by a name on the Hub: the cache's links are followed into its blobs alone."""

import shutil
from pathlib import Path

import pytest
import stub_hub
import tiny
import torch

import flashsparse_plugin as fs

ID = "example/tiny"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with stub_hub.running(monkeypatch, tmp_path / "cache") as hub:
        hub.models[ID] = tmp_path / "on-the-hub"
        yield hub


@pytest.mark.parametrize("subfolder", ["", "sub"])
@pytest.mark.parametrize("settings", [{}, {"quantization_config": fs.FlashSparseConfig()}])
def test_a_model_from_the_hub(hub, llama, settings, subfolder, tmp_path):
    source = llama.dense if settings else llama.packed
    shutil.copytree(source, hub.models[ID] / subfolder)
    model = tiny.load(ID, subfolder=subfolder, **settings)
    assert len(tiny.sparse_layers(model)) == 14
    assert torch.equal(tiny.logits(model), tiny.logits(tiny.load(source, **settings)))
    # A link that does not lead to a blob leads out, even if it stays in the cache.
    (weights,) = (tmp_path / "cache").rglob("snapshots/**/model.safetensors")
    secret = tmp_path / "cache" / "models--other--secret" / "blobs" / "0"
    secret.parent.mkdir(parents=True)
    shutil.copy(weights.resolve(), secret)
    weights.unlink()
    weights.symlink_to(secret)
    with pytest.raises(fs.FormatError, match="is a link that leads out of the model directory"):
        tiny.load(Path(weights).parent, **settings)
    with pytest.raises(fs.FormatError, match="is a link that leads out of the model directory"):
        tiny.load(ID, subfolder=subfolder, local_files_only=True, **settings)
