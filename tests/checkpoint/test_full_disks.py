# SPDX-License-Identifier: Apache-2.0
"""Disks that are full, small or read-only, and kills: convert and prune end in a sentence, leave
nothing that loads, and do all of it when they are run again."""

import errno
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoints import assert_same_model, load_all
from typer.testing import CliRunner

from flashsparse_plugin.checkpoint import CheckpointError
from flashsparse_plugin.checkpoint.convert import converter
from flashsparse_plugin.checkpoint.prune import pruned
from flashsparse_plugin.checkpoint.write import room, staging
from flashsparse_plugin.checkpoint.write.writer import ShardWriter
from flashsparse_plugin.cli import app

COMMANDS = {
    "convert": ["--pack-all", "--max-shard-size", "60kB"],
    "prune": ["--method", "magnitude", "--sparsity", "0.9"],
}
each_command = pytest.mark.parametrize("command", COMMANDS)


def run(command, source, out):
    result = CliRunner().invoke(app, [command, str(source), str(out), *COMMANDS[command]])
    return result.exit_code, " ".join(result.stderr.replace("│", " ").split())


def refused(command, source, out):
    """Runs a command that must fail; returns what it tells."""
    code, told = run(command, source, out)
    assert code in (1, 2) and "Traceback" not in told, told
    assert not out.exists()
    return told


def succeeds(command, source, out):
    code, told = run(command, source, out)
    assert code == 0, told
    if command == "convert":
        assert_same_model(source, out)
    else:
        assert load_all(out).keys() == load_all(source).keys()
    assert {path.name for path in out.parent.iterdir()} == {"dense", "out"}


@contextmanager
def files_of_at_most(nbytes):
    """The system itself refuses to write more; Python ignores the signal that it sends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@each_command
def test_a_file_that_must_not_get_larger(command, sharded, tmp_path):
    out = tmp_path / "out"
    with files_of_at_most(40_000):
        told = refused(command, sharded, out)
    assert f"no space left for {out}.partial (File too large)" in told
    assert "run the" in told
    succeeds(command, sharded, out)


# Libraries beside ours may look for a temporary directory, for which tempfile writes a file.
NO_FILE_AT_ALL = (
    "import resource, tempfile; tempfile.gettempdir(); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
)


@pytest.mark.slow
@each_command
def test_no_room_for_the_first_word(command, sharded, tmp_path):
    """A process of its own, where nothing else that is written meets the limit."""
    out = tmp_path / "out"
    program = f"{NO_FILE_AT_ALL}; from flashsparse_plugin.cli import main; main()"
    line = [sys.executable, "-c", program, command, sharded, out, *COMMANDS[command]]
    ended = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended.stderr
    assert "no space left for" in " ".join(ended.stderr.replace("│", " ").split())
    succeeds(command, sharded, out)


def test_a_state_that_was_not_finished_is_no_other_file(tmp_path):
    """What every command that stages its output leaves, which no later one may stumble over."""
    partial, precious = tmp_path / "out.partial", tmp_path / "precious"
    partial.mkdir()
    precious.write_text("mine")
    (partial / f"{staging.STATE}.new").symlink_to(precious)
    with staging.Staging(tmp_path / "out", {"what": "a model"}) as begun:
        assert begun.finished == [] and precious.read_text() == "mine"
    assert [path.name for path in partial.iterdir()] == [staging.STATE]
    (partial / staging.STATE).rename(partial / "notes.txt")
    with pytest.raises(CheckpointError, match="holds other files"), begun:
        pass


@each_command
@pytest.mark.parametrize("step", ["add", "close", "write_json"])
def test_a_full_disk(command, step, sharded, tmp_path, monkeypatch):
    """Whatever is written when the last byte is gone."""

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    module = converter if command == "convert" else pruned
    with monkeypatch.context() as disk:
        disk.setattr(*((module, step) if step == "write_json" else (ShardWriter, step)), full)
        told = refused(command, sharded, tmp_path / "out")
    assert "no space left for" in told and "Make room and run the" in told
    assert (tmp_path / "out.partial").exists() == (command == "convert")  # which resumes
    succeeds(command, sharded, tmp_path / "out")


@each_command
def test_a_read_only_place_is_told_before_the_work(command, sharded, tmp_path, monkeypatch):
    monkeypatch.setattr(room.os, "access", lambda path, mode: False)
    monkeypatch.setattr(staging.Staging, "__enter__", None)
    told = refused(command, sharded, tmp_path / "deep" / "out")
    assert f"{tmp_path} must not be written by this user: choose another output" in told


@each_command
def test_a_disk_that_became_read_only(command, sharded, tmp_path, monkeypatch):
    def read_only(self, *arguments, **more):
        raise OSError(errno.EROFS, "Read-only file system", str(self.path))

    monkeypatch.setattr(ShardWriter, "close", read_only)
    told = refused(command, sharded, tmp_path / "out")
    assert "must not be written by this user" in told


def test_pruning_needs_room_before_it_starts(sharded, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
    told = refused("prune", sharded, tmp_path / "out")
    assert "it needs " in told and "1 kB are free in" in told
    assert not (tmp_path / "out.partial").exists()


class Killed(BaseException):
    """Nothing is tidied up after it."""


@pytest.mark.parametrize("step", ["open", "add", "close", "carry_files", "write_json", "rename"])
def test_prune_killed_at_any_step(step, sharded, tmp_path, monkeypatch):
    """As SIGKILL leaves the disk: whatever was written, and nothing that was to be tidied up.

    test_resume.py has the same of convert, and a real SIGKILL.
    """
    out = tmp_path / "out"

    def kill(*arguments, **more):
        raise Killed

    places = {
        "open": (ShardWriter, "__init__"),
        "add": (ShardWriter, "add"),
        "close": (ShardWriter, "close"),
        "carry_files": (pruned, "carry_files"),
        "write_json": (pruned, "write_json"),
        "rename": (Path, "rename"),
    }
    with monkeypatch.context() as last, pytest.raises(Killed):
        last.setattr(*places[step], kill)
        last.setattr(staging.Staging, "discard", lambda self: None)
        app(["prune", str(sharded), str(out), *COMMANDS["prune"]], standalone_mode=False)
    assert not out.exists() and (tmp_path / "out.partial").is_dir()
    assert step == "rename" or not (tmp_path / "out.partial" / "config.json").exists()
    succeeds("prune", sharded, out)
