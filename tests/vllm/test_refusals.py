# SPDX-License-Identifier: Apache-2.0
"""A damaged packed checkpoint is refused before anything heavy starts, and the last lines of the
server say which file, which layer and what rule."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import vllm_checkpoints as checkpoints
from safetensors.torch import load_file, save_file
from vllm_processes import command, executed
from vllm_server import Server, tail

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.integrations.vllm.folder import folder_of
from flashsparse_plugin.integrations.vllm.preflight import (
    DamagedCheckpointError,
    check_checkpoint,
    check_files,
    packed_layers,
)

FILE = "model.safetensors"
Q = "model.layers.1.self_attn.q_proj"
UP = "model.layers.1.mlp.up_proj"


def edit(tensors):
    """A damage that changes the tensors of a file that stays whole."""

    def apply(folder):
        path = folder / FILE
        loaded = load_file(path)
        tensors(loaded)
        save_file({name: t.contiguous() for name, t in loaded.items()}, path, {"format": "pt"})

    return apply


@edit
def swapped(tensors):
    for name in ("weight_packed", "unit_offsets"):
        a, b = f"{Q}.{name}", f"{UP}.{name}"
        tensors[a], tensors[b] = tensors[b], tensors[a]


@edit
def wrong_offset(tensors):
    tensors[f"{Q}.unit_offsets"][1] += 1


@edit
def location_outside(tensors):
    """UP has 160 rows: its second row of tiles ends after 32 of 128."""
    first = int(tensors[f"{UP}.unit_offsets"][2])
    tensors[f"{UP}.weight_packed"][first] |= 0x1FFF


@edit
def missing_layer(tensors):
    for name in ("weight_packed", "unit_offsets"):
        del tensors[f"{Q}.{name}"]


@edit
def missing_half(tensors):
    del tensors[f"{Q}.unit_offsets"]


@edit
def wrong_dtype(tensors):
    tensors[f"{Q}.weight_packed"] = tensors[f"{Q}.weight_packed"].long()


def truncated(folder):
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-1000])


def flipped_bit(folder):
    """Of the value of a word: no rule of the format tells it from another value."""
    path = folder / FILE
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + length])[f"{Q}.weight_packed"]["data_offsets"]
    data[8 + length + start + 3] ^= 0x10
    path.write_bytes(data)


def linked_out(folder):
    (folder / FILE).rename(folder.parent / "elsewhere")
    (folder / FILE).symlink_to(folder.parent / "elsewhere")


def endless_layers(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1_000_000}))


def newer_version(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["format_version"] = 2
    path.write_text(json.dumps(config))


# What the last lines have to say.
DAMAGES = {
    "truncated": (truncated, [FILE, "not a whole safetensors file", "fetch it again"]),
    "swapped": (swapped, [FILE, UP, "unit_offsets", "flashsparse convert"]),
    "wrong_offset": (wrong_offset, [FILE, Q, "flashsparse convert"]),
    "missing_layer": (missing_layer, [Q, "in no file of", "flashsparse convert"]),
    "wrong_dtype": (wrong_dtype, [FILE, Q, "must be torch.int32", "torch.int64"]),
    "newer_version": (newer_version, ["config.json", "version 2", "pip install -U"]),
}
MORE = {
    "location_outside": (location_outside, [FILE, UP, "flashsparse convert"]),
    "missing_half": (missing_half, [FILE, Q, "missing: unit_offsets"]),
    "flipped_bit": (flipped_bit, [FILE, Q, "checksum"]),
    "linked_out": (linked_out, [FILE, "is a link that leads out of the model directory"]),
    "endless_layers": (endless_layers, ["num_hidden_layers", "1,000,000", "different models"]),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return checkpoints.make("llama", tmp_path_factory.mktemp("sound"))[1]


def damaged(packed, folder, name):
    damage, words = (DAMAGES | MORE)[name]
    shutil.copytree(packed, folder)
    damage(folder)
    return folder, words


def config_of(folder) -> FlashSparseConfig:
    config = json.loads((folder / "config.json").read_text())
    return FlashSparseConfig(**config["quantization_config"])


def test_a_sound_checkpoint_passes(packed):
    check_checkpoint(packed, config_of(packed))


@pytest.mark.parametrize("name", sorted((DAMAGES | MORE).keys() - {"newer_version"}))
def test_the_check_finds_the_damage(packed, tmp_path, name):
    folder, words = damaged(packed, tmp_path / name, name)
    with pytest.raises(DamagedCheckpointError) as caught:
        check_checkpoint(folder, config_of(folder))
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def test_a_layer_that_the_config_calls_dense_is_not_packed(packed, tmp_path):
    config = config_of(packed)
    with pytest.raises(DamagedCheckpointError, match="q_proj.*config.json calls it dense"):
        check_checkpoint(packed, config.model_copy(update={"ignore": ["q_proj"]}))


def on_the_hub(folder: Path, cache: Path) -> str:
    """Puts a model into a cache of the Hub, whose snapshots are links; returns its id."""
    home = cache / f"models--someone--{folder.name}"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for file in folder.iterdir():
        shutil.copy(file, home / "blobs" / file.name)
        (snapshot / file.name).symlink_to(home / "blobs" / file.name)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(snapshot.name)
    return f"someone/{folder.name}"


def engine_config(model: str, config: FlashSparseConfig, cache: Path) -> SimpleNamespace:
    """What is asked of vLLM's configuration."""
    return SimpleNamespace(
        model_config=SimpleNamespace(model=model, revision=None),
        load_config=SimpleNamespace(download_dir=str(cache)),
        quant_config=SimpleNamespace(stored=config),
    )


def test_the_check_reads_what_is_on_the_hub(packed, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    config = config_of(packed)
    sound = engine_config(on_the_hub(packed, tmp_path), config, tmp_path)
    check_files(sound)
    assert len(packed_layers(folder_of(sound.model_config, sound.load_config))) == 21
    folder, words = damaged(packed, tmp_path / "flipped", "flipped_bit")
    with pytest.raises(DamagedCheckpointError) as caught:
        check_files(engine_config(on_the_hub(folder, tmp_path), config, tmp_path))
    assert all(word in str(caught.value) for word in words)
    caplog.clear()
    check_files(engine_config("someone/unknown", config, tmp_path))  # vLLM fails to find it itself
    assert "someone/unknown is not checked before loading" in caplog.text


def require_refusal(name: str, code: int, log: Path) -> None:
    last = tail(log, 4)
    assert code != 0, last
    assert [word for word in (DAMAGES | MORE)[name][1] if word not in last] == [], last
    assert "EngineCore" not in log.read_text()


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_the_server_does_not_start(packed, tmp_path, processes, name):
    """It ends in its front end within a minute, with no process started."""
    folder, _ = damaged(packed, tmp_path / name, name)
    # Of a user's command, with the time that imports take, there is one.
    start = executed if name == "truncated" else command
    server = Server(folder, tmp_path / "log", processes, start=start)
    require_refusal(name, server.wait_for_refusal(), server.log)


def test_no_damage_on_the_hub_lets_a_server_start(packed, tmp_path, processes, environment):
    """Models of the Hub, which vLLM finds in its cache."""
    hub = Path(environment["HF_HUB_CACHE"])
    flipped, _ = damaged(packed, tmp_path / "flipped", "flipped_bit")
    server = Server(Path(on_the_hub(flipped, hub)), tmp_path / "flipped.log", processes)
    require_refusal("flipped_bit", server.wait_for_refusal(), server.log)

    unmarked = Path(shutil.copytree(packed, tmp_path / "unmarked"))
    stored = json.loads((unmarked / "config.json").read_text())
    del stored["quantization_config"]
    (unmarked / "config.json").write_text(json.dumps(stored))
    server = Server(Path(on_the_hub(unmarked, hub)), tmp_path / "unmarked.log", processes)
    assert server.wait_for_refusal() != 0
    assert "is packed by flashsparse, and its config.json has no" in tail(server.log, 4)
