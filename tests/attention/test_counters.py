# SPDX-License-Identifier: Apache-2.0
"""Counts of one process reach another, which asks about running processes only."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from flashsparse_plugin.attention import Counter, counters, publish, published


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path))
    return tmp_path / "counters"


def test_nothing_is_published_where_nothing_was_counted(folder):
    assert counters() == {} and published() == []
    publish()
    assert not folder.exists()


def test_counts_are_published_and_read(folder):
    held = [Counter(f"layer {number}", torch.device("cpu")) for number in (10, 9)]
    held[0].add(torch.tensor([[1, 0, 3]]))
    publish()
    (process,) = published()
    assert process["pid"] == os.getpid()
    assert process["program"] == Path("/proc/self/comm").read_text().strip()
    assert list(process["layers"].items()) == [("layer 9", [0, 0]), ("layer 10", [4, 3])]
    held[1].add(torch.tensor([[0, 2, 0]]))
    publish()  # in the place of the first
    (process,) = published()
    assert process["layers"] == {"layer 9": [2, 3], "layer 10": [4, 3]}


def test_what_others_left_behind_is_removed(folder):
    folder.mkdir()
    gone = folder / f"{2**22 + 1}.json"  # above any process number that Linux gives
    nobody = folder / "notes.json"
    for path in (gone, nobody):
        path.write_text("{}")
    assert published() == []
    assert not gone.exists() and not nobody.exists()


def test_no_command_line_is_published(folder, tmp_path):
    """It may hold a key: vllm serve takes one as an option."""
    child = subprocess.Popen(["cat", "-u"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        os.write(child.stdin.fileno(), b"x")
        assert child.stdout.read(1) == b"x"  # it runs
        folder.mkdir()
        (folder / f"{child.pid}.json").write_text('{"counted": "2026-01-01T00:00", "layers": {}}')
        (process,) = published()
    finally:
        child.kill()
        child.wait()
    assert process["program"] == "cat" and "-u" not in json.dumps(process)


def test_a_fifo_and_a_directory_are_no_counts(folder):
    """Reading a FIFO would wait for a writer, for ever."""
    folder.mkdir()
    os.mkfifo(folder / f"{os.getpid()}.json")
    (folder / "notes.json").mkdir()
    (process,) = published()
    assert "not a regular file" in process["error"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"layers": {"a": [1]}}', '{"counted": "now", "layers": {}}', "\x00"]
)
def test_a_damaged_file_is_named(folder, text):
    folder.mkdir()
    path = folder / f"{os.getpid()}.json"
    path.write_text(text)
    (process,) = published()
    assert process["error"].startswith(f"{path} cannot be read as counts: ")
