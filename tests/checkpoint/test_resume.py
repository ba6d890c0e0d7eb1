# SPDX-License-Identifier: Apache-2.0
"""A conversion that is stopped anywhere leaves nothing that loads, and can be run again."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from checkpoints import assert_same_model, edit_config, edit_weights

from flashsparse_plugin.checkpoint import CheckpointError, ModelDirectory, convert_checkpoint
from flashsparse_plugin.checkpoint import converter as converter_module
from flashsparse_plugin.checkpoint.staging import STATE

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


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"job": 1}'])
def test_a_damaged_state_starts_over(sharded, tmp_path, state):
    stopped_run(sharded, tmp_path / "out", 35)
    (tmp_path / "out.partial" / STATE).write_text(state)
    assert convert_checkpoint(sharded, tmp_path / "out", max_shard_size=SIZE).resumed_shards == 0


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
