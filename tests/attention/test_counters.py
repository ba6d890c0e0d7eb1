# SPDX-License-Identifier: Apache-2.0
"""Counts of one process reach another, which asks about running processes only."""

import os
import re

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
    assert re.search("python|pytest", process["command"])  # xdist may rename its workers
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


@pytest.mark.parametrize(
    "text", ["", "[]", '{"layers": {"a": [1]}}', '{"counted": "now", "layers": {}}', "\x00"]
)
def test_a_damaged_file_is_named(folder, text):
    folder.mkdir()
    path = folder / f"{os.getpid()}.json"
    path.write_text(text)
    (process,) = published()
    assert process["error"].startswith(f"{path} cannot be read as counts: ")
