# SPDX-License-Identifier: Apache-2.0
"""Models that are named as on the Hub: fetched from a Hub on this machine by its own client."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import stub_hub
from huggingface_hub import ModelCard, constants, errors
from safetensors import safe_open
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import CheckpointError, convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.hub.fetching import HubModel
from flashsparse_plugin.checkpoint.hub.publishing import Publisher
from flashsparse_plugin.cli import app
from flashsparse_plugin.cli.models import target_shapes

ID = "example/tiny"


@pytest.fixture
def hub(model_dir, tmp_path, monkeypatch):
    """A Hub with a model in it, and with an empty cache of what was fetched from it."""
    with stub_hub.running(monkeypatch, tmp_path / "cache") as hub:
        monkeypatch.chdir(tmp_path)
        hub.models[ID] = shutil.copytree(model_dir, tmp_path / "on-the-hub")
        yield hub


def flashsparse(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments):
    result = flashsparse(*arguments)
    assert result.exit_code in (1, 2), result.stdout
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("org/name", ("org/name", None)),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/na.me-2_x@refs/pr/1", ("org/na.me-2_x", "refs/pr/1")),
        *[(name, None) for name in ("name", "./name", "../name", "/org/name", "~/org/name")],
        *[(name, None) for name in ("a/b/c", "org/name@", "org/..", "org/name@../x", "org/na me")],
    ],
)
def test_names_of_models(name, found):
    assert HubModel.parse(name) == found


def test_every_command_takes_the_name_of_a_model(hub, text_file, tmp_path):
    pruned, packed = tmp_path / "pruned", tmp_path / "packed"
    for command in (
        ["prune", ID, pruned, "--method", "magnitude", "--sparsity", "0.7"],
        ["convert", f"{ID}@main", packed, "--pack-all"],
        ["inspect", ID],
        ["generate", ID, "--prompt", "a", "-n", "2"],
        ["calibrate", ID, "--text", text_file, "--dry-run", "--tokens", "32", "--context", "16"],
        ["tune", ID, "--estimate", "H200"],
    ):
        result = flashsparse(*command)
        assert result.exit_code == 0, (command, result.stderr)
        assert ("Fetching example/tiny: " in result.stderr) == (command[0] == "prune")
    assert hub.fetched.count("model.safetensors") == 1
    for made in (pruned, packed):
        assert ModelCard.load(made / "README.md").data.base_model == ID


def test_functions_take_the_name_of_a_model_too(hub, tmp_path):
    report = convert_checkpoint(f"{ID}@main", tmp_path / "packed", pack_all=True)
    assert len(report.packed) == len(inspect_checkpoint(ID).layers)
    with pytest.raises(CheckpointError, match="has no branch, tag or commit 'v9'"):
        convert_checkpoint(f"{ID}@v9", tmp_path / "other")
    # A path is a path.
    with pytest.raises(CheckpointError, match="is not a directory"):
        convert_checkpoint(Path(ID), tmp_path / "other")


def test_what_reads_no_weights_fetches_none(hub):
    (hub.models[ID] / "model.safetensors").rename(hub.models[ID] / "pytorch_model.bin")
    assert target_shapes(ID)[1].layers  # all that `advise` reads of a model
    assert "config.json" in hub.fetched and "pytorch_model.bin" not in hub.fetched


def test_only_what_is_read_is_fetched(hub, tmp_path):
    home = hub.models[ID]
    (home / "onnx").mkdir()
    unread = ["pytorch_model.bin", "modeling_tiny.py", "onnx/model.json", "flax_model.msgpack"]
    for name in (*unread, "consolidated.safetensors"):
        (home / name).write_text("{}")
    assert flashsparse("tune", ID, "--estimate", "H200").exit_code == 0
    assert "model.safetensors" in hub.fetched and "tokenizer.json" in hub.fetched
    assert {*unread, "consolidated.safetensors"} & {*hub.fetched} == set()


def test_shards_that_the_index_names_are_fetched(hub, tmp_path):
    home = hub.models[ID]
    (home / "model.safetensors").rename(home / "part-1.safetensors")
    with safe_open(home / "part-1.safetensors", "pt") as file:
        index = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), "part-1.safetensors")}
    (home / "model.safetensors.index.json").write_text(json.dumps(index))
    assert flashsparse("tune", ID, "--estimate", "H200").exit_code == 0
    # An index is as hostile as anything else.
    index["weight_map"] = dict.fromkeys(index["weight_map"], "../../part-1.safetensors")
    (home / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.rmtree(tmp_path / "cache")
    assert "only files in the directory itself" in refusal("inspect", ID)


def test_a_local_directory_of_the_name_is_taken_first(hub, model_dir, tmp_path):
    (tmp_path / "example").mkdir()
    shutil.copytree(model_dir, tmp_path / "example" / "tiny")
    assert flashsparse("tune", ID, "--estimate", "H200").exit_code == 0
    assert hub.fetched == []


def test_what_is_not_to_be_had_is_explained(hub, tmp_path, monkeypatch):
    look = ["inspect", ID]
    hub.gated.add(ID)
    assert f"is gated: accept its conditions at {hub.url}/{ID}, then log" in refusal(*look)
    told = refusal("inspect", "example/missing")
    assert "no directory example/missing is here, and the Hub has no model" in told
    assert "has no branch, tag or commit 'v9'" in refusal("inspect", f"{ID}@v9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE keeps it from being fetched: unset" in refusal(*look)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "hf download example/tiny --local-dir tiny" in refusal(*look)


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ((200, b"<html>Welcome to our network</html>"), "is not the Hub"),
        ((200, b"[]"), "is not the Hub"),
        ((200, b"{}"), "is not the Hub"),
        (
            (500, b"{}"),
            "the Hub answers with an error where example/tiny is fetched (Server error '500",
        ),
    ],
)
def test_what_answers_in_the_place_of_the_hub_is_explained(hub, instead, told, tmp_path):
    hub.instead = instead
    assert told in (found := refusal("inspect", ID)) and "run the command again" in found
    hub.instead = None
    assert flashsparse("inspect", ID).exit_code == 0


@pytest.mark.slow
def test_a_download_that_is_dropped_is_explained(hub):
    hub.drops = True
    told = refusal("inspect", ID)
    assert "the Hub cannot be reached any more (" in told and f"{ID} is not fetched" in told
    hub.drops = False
    assert flashsparse("inspect", ID).exit_code == 0


def test_without_a_network_what_was_fetched_is_used(hub, monkeypatch):
    assert flashsparse("tune", ID, "--estimate", "H200").exit_code == 0
    asked = len(hub.fetched)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert flashsparse("tune", ID, "--estimate", "H200").exit_code == 0
    assert len(hub.fetched) == asked


def test_what_has_no_safetensors_is_explained_before_it_is_fetched(hub):
    home = hub.models[ID]
    (home / "model.safetensors").rename(home / "pytorch_model.bin")
    assert "only safetensors are read" in refusal("inspect", ID)
    (home / "pytorch_model.bin").rename(home / "tiny-Q4_0.gguf")
    assert "example/tiny/tiny-Q4_0.gguf is a GGUF file" in refusal("inspect", ID)
    (home / "tiny-Q4_0.gguf").unlink()
    assert "has no model.safetensors nor" in refusal("inspect", ID)
    assert hub.fetched == []


def test_the_cache_is_not_changed(hub, text_file):
    for command in ("calibrate", ID), ("eval", ID, "--card"):
        told = refusal(*command, "--text", text_file)
        assert "hf download example/tiny --local-dir tiny" in told, command
    assert hub.fetched == []


@pytest.fixture
def account(monkeypatch):
    """What is asked of the Hub to write to it; it knows `me`, of the organisation `lab`."""
    asked, token = [], {"role": "write"}

    class Api:
        def __init__(self, **settings):
            pass

        def whoami(self):
            return {"name": "me", "orgs": [{"name": "lab"}], "auth": {"accessToken": token}}

        def create_repo(self, name, **settings):
            asked.append(("create", name, settings))
            return f"https://hub.example/{name}"

        def upload_folder(self, **settings):
            files = {path.name for path in settings["folder_path"].iterdir()}
            asked.append(("upload", settings["repo_id"], files, settings["delete_patterns"]))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    Api.asked, Api.token = asked, token
    return Api


@pytest.mark.parametrize("command", ["prune", "recover", "round", "convert"])
def test_what_is_complete_is_pushed(account, model_dir, text_file, tmp_path, command):
    more = {"prune": ["--method", "magnitude"], "convert": ["--pack-all"]}
    given = [model_dir]
    if command == "recover":
        given = [tmp_path / "pruned", model_dir]
        assert flashsparse("prune", model_dir, given[0], *more["prune"]).exit_code == 0
    windows = ["--calibration", text_file, "--samples", "8", "--length", "32"]
    more |= {"recover": windows, "round": [*windows, "--format", "1:1-L128-int4"]}
    result = flashsparse(command, *given, tmp_path / "out", *more[command], "--push", "lab/tiny")
    assert result.exit_code == 0, result.stderr
    created, (what, name, files, replaced) = account.asked
    assert created == ("create", "lab/tiny", {"private": True, "exist_ok": True})
    assert (what, name) == ("upload", "lab/tiny")
    assert {"config.json", "model.safetensors", "README.md", "tokenizer.json"} <= files
    assert files == {path.name for path in (tmp_path / "out").iterdir()}
    assert "*.safetensors" in replaced  # else old shards would stay beside the new ones
    assert "Pushed to https://hub.example/lab/tiny" in result.stdout
    assert '"lab/tiny"' in (tmp_path / "out" / "README.md").read_text()


def test_the_hubs_own_client_pushes_and_fetches_it_again(hub, model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    kept = hub.home / "me" / "tiny"
    kept.mkdir(parents=True)
    (kept / "part-7.safetensors").touch()  # of a model that was there
    (kept / "NOTES.md").touch()
    hub.models["me/tiny"] = kept
    out = tmp_path / "out"
    result = flashsparse("convert", model_dir, out, "--pack-all", "--push", "me/tiny")
    assert result.exit_code == 0, result.stderr
    assert f"Pushed to {hub.url}/me/tiny" in result.stdout
    pushed = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert pushed == {path.name: path.read_bytes() for path in out.iterdir()} | {"NOTES.md": b""}
    result = flashsparse("inspect", "me/tiny", "--json")
    assert result.exit_code == 0, result.stderr
    assert "model.safetensors" in hub.fetched


def test_a_push_that_would_be_refused_is_refused_before_the_work(account, model_dir, tmp_path):
    def told(name):
        return refusal("convert", model_dir, tmp_path / "out", "--pack-all", "--push", name)

    assert "me cannot push to other/tiny: other is neither you nor an" in told("other/tiny")
    assert "'tiny' is no name of a model on the Hub" in told("tiny")
    assert "no name of a model" in told("me/tiny@main")

    account.token["role"] = "read"
    assert "this token may only read" in told("me/tiny")

    def nobody(self):
        raise errors.LocalTokenNotFoundError("Token is required")

    account.whoami = nobody
    assert "log in with `hf auth login`" in told("me/tiny")
    assert not (tmp_path / "out").exists() and account.asked == []


@pytest.mark.parametrize("instead", [(200, b"<html>"), (200, b"[]")])
def test_a_push_to_what_is_not_the_hub(hub, instead, model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    hub.instead = instead
    told = refusal("convert", model_dir, tmp_path / "out", "--pack-all", "--push", "me/tiny")
    assert "nothing is pushed to me/tiny: what answers at" in told
    assert not (tmp_path / "out").exists()
    # From the login to the upload the network was lost.
    with pytest.raises(CheckpointError, match="is complete, and could not be pushed.*hf upload"):
        Publisher(HubModel("me/tiny")).publish(model_dir, "a model")


def test_a_push_that_fails_leaves_the_model(account, model_dir, tmp_path):
    def broken(self, **settings):
        raise OSError("connection reset")

    account.upload_folder = broken
    told = refusal("convert", model_dir, tmp_path / "out", "--pack-all", "--push", "me/tiny")
    assert "out is complete, and could not be pushed to me/tiny (connection reset)" in told
    assert "hf upload me/tiny" in told
    assert (tmp_path / "out" / "config.json").exists()
