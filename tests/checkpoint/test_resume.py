# SPDX-License-Identifier: Apache-2.0
"""A conversion that is stopped anywhere leaves nothing that loads, and can be run again."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoints import assert_same_model, edit_config, edit_weights
from safetensors.torch import load_file, save_file

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory, convert_checkpoint
from flashsparse_plugin.checkpoint.convert import converter as converter_module
from flashsparse_plugin.checkpoint.write import staging as staging_module
from flashsparse_plugin.checkpoint.write.staging import STATE
from flashsparse_plugin.checkpoint.write.writer import digest_of

SIZE = "60kB"


class Stopped(BaseException):
    """Like KeyboardInterrupt: nothing may swallow it."""


def stop_after(count):
    seen = []

    def on_progress(*news):
        seen.append(news)
        if len(seen) > count:
            raise Stopped

    return on_progress


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def stopped_run(source, out, count):
    with pytest.raises(Stopped):
        convert_checkpoint(source, out, max_shard_size=SIZE, on_progress=stop_after(count))
    assert not out.exists()
    with pytest.raises(CheckpointError):
        ModelDirectory(out.with_name("out.partial"))


def test_stopped_at_every_step(sharded, tmp_path):
    whole, out = tmp_path / "whole" / "out", tmp_path / "out"
    seen = []
    convert_checkpoint(
        sharded, whole, max_shard_size=SIZE, on_progress=lambda *news: seen.append(news)
    )
    kept = []
    for count in range(0, len(seen), 3):
        stopped_run(sharded, out, count)
        report = convert_checkpoint(sharded, out, max_shard_size=SIZE)
        kept.append(report.resumed_shards)
        assert contents(out) == contents(whole)
        assert {path.name for path in tmp_path.iterdir()} == {"dense", "whole", "out"}
        for file in out.iterdir():
            file.unlink()
        out.rmdir()
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert kept[-1] > 3


def test_without_space_it_tells_how_much_and_goes_on(sharded, tmp_path, monkeypatch):
    out, written = tmp_path / "out", []
    add = converter_module.ShardWriter.add

    def full(self, *arguments, **more):
        if len(written) == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(self.path)
        add(self, *arguments, **more)

    monkeypatch.setattr(converter_module.ShardWriter, "add", full)
    with pytest.raises(
        CheckpointError, match=r"no space left for .*out\.partial.* up to .*kB.*same"
    ):
        convert_checkpoint(sharded, out, max_shard_size=SIZE)
    monkeypatch.setattr(converter_module.ShardWriter, "add", add)
    assert convert_checkpoint(sharded, out, max_shard_size=SIZE).resumed_shards > 0
    assert_same_model(sharded, out)


@pytest.mark.parametrize("step", ["carry_files", "write_card", "name_shards", "write_json"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_stopped_while_finishing(sharded, tmp_path, monkeypatch, step, when):
    do = getattr(converter_module, step)

    def stop(*arguments):
        if when == "after":
            do(*arguments)
        raise Stopped

    out = tmp_path / "out"
    monkeypatch.setattr(converter_module, step, stop)
    with pytest.raises(Stopped):
        convert_checkpoint(sharded, out, max_shard_size=SIZE)
    assert not out.exists()
    partial = tmp_path / "out.partial"
    if (step, when) != ("write_json", "after"):  # then all is written and verified
        assert not (partial / "config.json").exists()
    monkeypatch.setattr(converter_module, step, do)
    convert_checkpoint(sharded, out, max_shard_size=SIZE)
    assert assert_same_model(sharded, out) == 14
    assert not (out / STATE).exists()
    assert not partial.exists()


def test_a_changed_source_starts_over(llama, tmp_path):
    out = tmp_path / "out"
    stopped_run(llama, out, 25)
    edit_weights(llama, lambda t: t["model.layers.0.mlp.up_proj.weight"][:, :9].zero_())
    report = convert_checkpoint(llama, out, max_shard_size=SIZE)
    assert report.resumed_shards == 0
    assert assert_same_model(llama, out) == 14


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float16"},
        {"ignore": ["lm_head", "up_proj"]},
        {"pack_all": True},
        {"max_shard_size": "61kB"},
    ],
)
def test_changed_settings_start_over(sharded, tmp_path, changed):
    stopped_run(sharded, tmp_path / "out", 35)
    report = convert_checkpoint(sharded, tmp_path / "out", **{"max_shard_size": SIZE} | changed)
    assert report.resumed_shards == 0
    ModelDirectory(tmp_path / "out")


def test_a_changed_config_starts_over(sharded, tmp_path):
    stopped_run(sharded, tmp_path / "out", 35)
    edit_config(sharded, rms_norm_eps=1e-3)
    assert convert_checkpoint(sharded, tmp_path / "out", max_shard_size=SIZE).resumed_shards == 0


def test_damaged_work_is_done_again(sharded, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    stopped_run(sharded, out, 35)
    finished = json.loads((partial / STATE).read_text())["finished"]
    assert len(finished) > 3
    second = partial / finished[1]["file"]
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    report = convert_checkpoint(sharded, out, max_shard_size=SIZE)
    assert report.resumed_shards == 1
    assert assert_same_model(sharded, out) == 14


@pytest.mark.parametrize(
    "state", ["", "{}", "[]", '{"job": 1}', "[" * 100_000, '{"job": {}, "finished": [5]}', "\0"]
)
def test_a_damaged_state_starts_over(sharded, tmp_path, state):
    stopped_run(sharded, tmp_path / "out", 35)
    (tmp_path / "out.partial" / STATE).write_text(state)
    assert convert_checkpoint(sharded, tmp_path / "out", max_shard_size=SIZE).resumed_shards == 0


def edit_state(partial, number, change):
    """Changes what the state says of a shard, and keeps its digest true."""
    state = json.loads((partial / STATE).read_text())
    shard = state["finished"][number]
    change(shard, partial / shard["file"])
    if (partial / shard["file"]).is_file():
        shard["digest"] = digest_of(partial / shard["file"])
    (partial / STATE).write_text(json.dumps(state))


def another_head(shard, file):
    tensors = load_file(file)
    name = next(name for name in tensors if tensors[name].is_floating_point())
    save_file(tensors | {name: tensors[name] * 2}, file, {"format": "pt"})


def another_dtype(shard, file):
    tensors = load_file(file)
    name = next(name for name in tensors if tensors[name].dtype == torch.bfloat16)
    save_file(tensors | {name: tensors[name].view(torch.float16)}, file, {"format": "pt"})


def a_file_elsewhere(shard, file):
    (file.parent.parent / "precious").mkdir()
    file.rename(file.parent.parent / "precious" / "part-00002.safetensors")
    shard["file"] = "../precious/part-00002.safetensors"


def a_link(shard, file):
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def another_tensor_more(shard, file):
    save_file(load_file(file) | {"ghost": torch.ones(8)}, file, {"format": "pt"})
    shard["tensors"]["ghost"] = 32


def another_end(shard, file):
    shard["end"] += 1


def an_end_beyond_all(shard, file):
    shard["end"] = 10**9


def no_such_key(shard, file):
    shard["surprise"] = 1


def of_layer(change):
    def edit(shard, file):
        change(next(layer for layer in shard["layers"] if layer["reason"] is None))

    edit.__name__ = change.__name__
    return edit


@of_layer
def another_sparsity(layer):
    layer["sparsity"] = 0.99


@of_layer
def a_reason(layer):
    layer["reason"] = "[click here](http://example.org)"


@of_layer
def another_name(layer):
    layer["name"] = "lm_head"


FORGERIES = [
    another_head,
    another_dtype,
    a_file_elsewhere,
    a_link,
    another_tensor_more,
    another_end,
    an_end_beyond_all,
    no_such_key,
    another_sparsity,
    a_reason,
    another_name,
]


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_what_a_state_claims_is_compared_with_the_source(sharded, tmp_path, forge):
    out, partial, whole = tmp_path / "out", tmp_path / "out.partial", tmp_path / "whole" / "out"
    convert_checkpoint(sharded, whole, max_shard_size=SIZE)
    stopped_run(sharded, out, 35)
    number = 0 if forge in (another_head, another_dtype) else 1  # a dense shard, or a packed one
    edit_state(partial, number, forge)
    report = convert_checkpoint(sharded, out, max_shard_size=SIZE)
    assert report.resumed_shards <= number
    assert contents(out) == contents(whole)
    if forge is a_file_elsewhere:
        assert (tmp_path / "precious" / "part-00002.safetensors").exists()


def test_the_working_directory_of_another_user_is_refused(llama, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(partial, 12345, -1)
    with pytest.raises(CheckpointError, match="belongs to another user.*12345"):
        convert_checkpoint(llama, tmp_path / "out")


def test_a_link_in_place_of_the_working_directory_is_refused(llama, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is in the way"):
        convert_checkpoint(llama, tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def old_model(out):
    out.mkdir()
    (out / "config.json").write_text('{"old": true}')


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("step", range(6))
def test_killed_while_it_replaces_a_model(llama, tmp_path, monkeypatch, exchanges, step):
    """Whichever call is the last, there is a whole model, and the next run leaves nothing else."""
    out = tmp_path / "out"
    old_model(out)
    if not exchanges:
        monkeypatch.setattr(staging_module, "_exchange", lambda *paths: False)
    calls = 0

    def counted(call):
        def run(*arguments, **options):
            nonlocal calls
            if calls == step:
                raise Stopped
            calls += 1
            return call(*arguments, **options)

        return run

    with monkeypatch.context() as last:
        last.setattr(staging_module, "_exchange", counted(staging_module._exchange))
        last.setattr(staging_module.shutil, "rmtree", counted(shutil.rmtree))
        last.setattr(staging_module.Path, "rename", counted(Path.rename))
        last.setattr(staging_module.Path, "unlink", counted(Path.unlink))
        try:
            convert_checkpoint(llama, out, overwrite=True)
            finished = True
        except Stopped:
            finished = False
    assert finished <= (step > 2)
    assert exchanges <= (out / "config.json").exists()  # an exchange is one step
    convert_checkpoint(llama, out, overwrite=True)
    assert assert_same_model(llama, out) == 14
    assert {path.name for path in tmp_path.iterdir()} == {"dense", "out"}


def test_leftovers_of_earlier_releases_are_named_and_removed(llama, tmp_path, caplog):
    out = tmp_path / "out"
    old_model(tmp_path / "out.replaced-4711")
    (tmp_path / ".out.ab12_x9z" / "model").mkdir(parents=True)
    kept = [".out.git", ".out.abcdefgh", "out.replaced-by", ".out2.ab12_x9z"]
    for name in kept:
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        convert_checkpoint(llama, out)  # the model that was being replaced is back
    assert (out / "config.json").read_text() == '{"old": true}'
    old_model(tmp_path / "out.replaced-4712")
    convert_checkpoint(llama, out, overwrite=True)
    for text in ("restored .*out", "removing .*out.replaced-4712", r"removing .*\.out\.ab12_x9z"):
        assert re.search(text, caplog.text)
    assert {path.name for path in tmp_path.iterdir()} == {"dense", "out", *kept}


def test_a_directory_of_someone_else_is_left_alone(llama, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mine.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="holds other files"):
        convert_checkpoint(llama, tmp_path / "out")
    assert contents(partial) == {"mine.txt": b"precious"}


def test_two_at_once(llama, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    lock = os.open(partial, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match="another conversion"):
        convert_checkpoint(llama, tmp_path / "out")
    os.close(lock)
    convert_checkpoint(llama, tmp_path / "out")


@pytest.mark.slow
def test_killed(sharded, tmp_path):
    """A real SIGKILL, once some shards are finished."""
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    code = f"""
import time
from flashsparse_plugin.checkpoint import convert_checkpoint
convert_checkpoint({str(sharded)!r}, {str(out)!r}, max_shard_size={SIZE!r},
                   on_progress=lambda *news: time.sleep(0.05))
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 120
        while not list(partial.glob("part-00003*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not out.exists()
    assert not (partial / "config.json").exists()
    report = convert_checkpoint(sharded, out, max_shard_size=SIZE)
    assert report.resumed_shards >= 2
    assert assert_same_model(sharded, out) == 14
