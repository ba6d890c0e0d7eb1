# SPDX-License-Identifier: Apache-2.0
"""Tables: what is found in them, what is refused, and what decides where there is none."""

import copy
import json
import logging
import multiprocessing
import os
import time
from random import Random
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from flashsparse_plugin.dataflow import DeviceKey, TableError, Weight, decision, resolve, table
from flashsparse_plugin.dataflow.table import (
    Entry,
    Table,
    add_to_table,
    read_table,
    table_path,
    write_table,
)
from flashsparse_plugin.formats import find_form, get_format

SCHEME = get_format("tiled_csl").scheme(torch.bfloat16)
GPU = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
DENSE_RANGES = [
    {"max_tokens": 2, "implementation": "gemv"},
    {"max_tokens": 48, "implementation": "flat_gemm"},
    {"max_tokens": None, "implementation": "library"},
]
PACKED_RANGES = [
    {"max_tokens": 200, "implementation": "sparse"},
    {"max_tokens": None, "implementation": "library"},
]
GOOD = {
    "version": 1,
    "device": GPU.model_dump(mode="json"),
    "dtype": "bfloat16",
    "entries": [
        {
            "shape": [4096, 4096],
            "ranges": DENSE_RANGES,
            "measurements": [{"tokens": 1, "microseconds": {"gemv": 9.5, "library": 13}}],
        },
        {"shape": [4096, 4096], "format": "tiled_csl", "density": 0.3, "ranges": PACKED_RANGES},
        {"shape": [4096, 4096], "format": "tiled_csl", "density": 0.2, "ranges": PACKED_RANGES},
    ],
}


@pytest.fixture
def h200(monkeypatch, tmp_path):
    """A GPU as torch would tell of it, an empty cache, no table that ships, nothing told yet."""
    found = SimpleNamespace(name=GPU.name, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path))
    monkeypatch.setattr(table, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(decision, "_told", set())
    table._cached.cache_clear()
    yield
    table._cached.cache_clear()


def written(data, path):
    path.write_text(json.dumps(data))
    return path


def test_what_was_measured_decides(h200):
    write_table(Table.model_validate(GOOD), table_path(GPU, "bfloat16"))
    found = resolve(Weight((4096, 4096)), torch.bfloat16, "cuda")
    assert found.source == "table" and "measured" in found.reason
    chosen = [found.implementation(tokens) for tokens in (1, 2, 3, 48, 49, 10**6)]
    assert chosen == ["gemv", "gemv", "flat_gemm", "flat_gemm", "library", "library"]


@pytest.mark.parametrize(
    ("weight", "dtype", "source"),
    [
        (Weight((4096, 4096), SCHEME, 0.34, 1 << 24), torch.bfloat16, "table"),
        (Weight((4096, 4096), SCHEME, 0.36, 1 << 24), torch.bfloat16, None),  # density
        (Weight((4096, 4097)), torch.bfloat16, "model"),
        (Weight((4096, 4096)), torch.float16, "model"),
    ],
)
def test_the_nearest_density_of_the_same_shape_and_dtype(h200, weight, dtype, source):
    write_table(Table.model_validate(GOOD), table_path(GPU, "bfloat16"))
    found = resolve(weight, dtype, "cuda")
    assert source == (found and found.source)


BITMAP = get_format("tiled_bitmap").scheme(torch.bfloat16)


def of_bitmap(*ranges):
    made = [{"max_tokens": most, "implementation": name} for most, name in ranges]
    entry = {"shape": [4096, 4096], "format": "tiled_bitmap", "density": 0.3, "ranges": made}
    return copy.deepcopy(GOOD) | {"entries": [entry]}


def test_three_implementations_of_a_packed_weight(h200):
    data = of_bitmap((48, "few"), (512, "many"), (None, "library"))
    write_table(Table.model_validate(data), table_path(GPU, "bfloat16"))
    found = resolve(Weight((4096, 4096), BITMAP, 0.3, 1 << 23), torch.bfloat16, "cuda")
    chosen = [found.implementation(tokens) for tokens in (1, 48, 49, 512, 513)]
    assert chosen == ["few", "few", "many", "many", "library"]
    assert (found.few_tokens, found.sparse_tokens) == (48, 512)


def test_tables_that_know_both_kernels_as_one_still_load(h200):
    """Before each kernel was measured, `sparse` was what the op took by its own rule."""
    data = of_bitmap((512, "sparse"), (None, "library"))
    write_table(Table.model_validate(data), table_path(GPU, "bfloat16"))
    found = resolve(Weight((4096, 4096), BITMAP, 0.3, 1 << 23), torch.bfloat16, "cuda")
    assert (found.few_tokens, found.sparse_tokens) == (None, 512)
    for wrong in ([(48, "sparse"), (512, "many")], [(512, "many"), (600, "few")]):
        with pytest.raises(ValidationError, match="is not one of sparse, library|but once, in"):
            Table.model_validate(of_bitmap(*wrong, (None, "library")))


def test_forms_of_a_gpu_are_in_tables(h200):
    """A layer is looked up by the form in which the GPU holds it, which no file has."""
    scheme = find_form("sparse_24").scheme(torch.bfloat16, {"n": 2, "m": 4})
    entry = Entry(
        shape=(4096, 4096), format="sparse_24", options=scheme.values, density=0.5,
        ranges=[{"max_tokens": 24, "implementation": "few"},
                {"max_tokens": None, "implementation": "many"}],
    )  # fmt: skip
    made = Table(device=GPU, dtype="bfloat16", entries=[entry])
    write_table(made, table_path(GPU, "bfloat16"))
    found = resolve(Weight((4096, 4096), scheme, 0.5, 1 << 24), torch.bfloat16, "cuda")
    assert found.source == "table" and str(found).startswith("few for up to 24 tokens, else many")


def test_of_two_densities_the_nearer():
    near = Table.model_validate(GOOD).find(Weight((4096, 4096), SCHEME, 0.24, 1 << 24))
    assert near.density == 0.2


def test_without_a_table_the_model_decides_and_says_so_once(h200, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        found = resolve(Weight((4096, 4096)), torch.bfloat16, "cuda")
    assert found.source == "model" and found.implementation(4096) == "library"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "estimated by the model of an H200" in told and "flashsparse tune" in told
    assert resolve(Weight((5, 5)), torch.bfloat16, "cuda").implementation(65) == "library"


@pytest.mark.parametrize(
    "name", ["tiled_csl", "tiled_bitmap", "sparse_24", "nm_gather", "nm_spmm", "nm_vector"]
)
def test_a_packed_weight_that_was_not_measured_is_left_to_its_op(h200, monkeypatch, name):
    """An estimate once chose kernels that took up to twice the time of the op's own choice."""
    random = Random(name)
    for scheme in find_form(name).examples():
        gpu = random.choice([("NVIDIA H200", 9, 0), ("NVIDIA A100", 8, 0), ("RTX 9999", 12, 0)])
        about = dict(zip(("name", "major", "minor"), gpu, strict=True))
        found = SimpleNamespace(**about, multi_processor_count=random.randint(16, 160))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, it=found: it)
        shape = (random.randint(1, 60000), random.randint(1, 30000))
        weight = Weight(shape, scheme, random.random(), random.randint(1, 1 << 30))
        assert resolve(weight, scheme.dtype, "cuda") is None


def test_what_a_table_estimates_is_no_measurement(h200, monkeypatch):
    data = GOOD | {"source": "model"}
    data["entries"] = [GOOD["entries"][0], GOOD["entries"][1]]
    (table.SHIPPED).mkdir()
    written(data, table.SHIPPED / "h200.json")
    packed, dense = Weight((4096, 4096), SCHEME, 0.3, 1 << 24), Weight((4096, 4096))
    assert resolve(packed, torch.bfloat16, "cuda") is None
    assert resolve(dense, torch.bfloat16, "cuda").source == "shipped"
    written(data | {"source": "measured"}, table.SHIPPED / "h200.json")
    table._cached.cache_clear()
    assert resolve(packed, torch.bfloat16, "cuda").source == "shipped"


def test_on_a_cpu_there_is_nothing_to_choose(h200):
    dense = resolve(Weight((10, 10)), torch.bfloat16, "cpu")
    assert (dense.source, dense.implementation(1)) == ("device", "library")
    assert resolve(Weight((10, 10), SCHEME, 0.5, 300), torch.bfloat16, "cpu") is None


def test_a_table_of_another_gpu_is_not_believed(h200):
    other = copy.deepcopy(GOOD)
    other["device"]["multiprocessors"] = 78
    write_table(Table.model_validate(other), table_path(GPU, "bfloat16"))
    assert resolve(Weight((4096, 4096)), torch.bfloat16, "cuda").source == "model"


def test_writing_keeps_what_else_was_measured(tmp_path):
    before = Table.model_validate(GOOD)
    again = Entry(shape=(4096, 4096), ranges=[{"max_tokens": None, "implementation": "library"}])
    new = Entry(shape=(1, 2), ranges=[{"max_tokens": None, "implementation": "library"}])
    write_table(before.with_entries([again, new]), tmp_path / "deep" / "table.json")
    found = read_table(tmp_path / "deep" / "table.json")
    assert len(found.entries) == 4 and again in found.entries and new in found.entries
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["table.json"]


def measure(first, monkeypatch):
    """What a process of `flashsparse tune` adds, one entry after the other."""

    def slowly(path):
        found = read_table(path)
        time.sleep(0.01)
        return found

    monkeypatch.setattr(table, "read_table", slowly)
    for rows in range(first, first + 15):
        ranges = [{"max_tokens": None, "implementation": "library"}]
        add_to_table([Entry(shape=(rows, 8), ranges=ranges)], GPU, "bfloat16")


def test_processes_that_measure_at_once_keep_what_each_found(h200, monkeypatch):
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=measure, args=(n, monkeypatch)) for n in (1, 101)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    path = table_path(GPU, "bfloat16")
    rows = {entry.shape[0] for entry in read_table(path).entries}
    assert rows == {*range(1, 16), *range(101, 116)}
    assert [*path.parent.iterdir()] == [path]


def test_entries_of_forms_that_are_gone_are_ignored_with_a_line(tmp_path, caplog):
    gone = {"format": "cusparselt_24", "options": {"n": 2, "m": 4}, "searched": {"library": 801}}
    data = GOOD | {"entries": [*GOOD["entries"], GOOD["entries"][1] | gone]}
    path = written(data, tmp_path / "table.json")
    assert read_table(path) == read_table(written(GOOD, tmp_path / "good.json"))
    (message,) = caplog.messages
    assert f"{path}: 1 entries are ignored" in message and "cusparselt_24" in message


def damaged(damage):
    data = copy.deepcopy(GOOD)
    damage(data)
    return data


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(version=2), "version 2; .* pip install -U"),
        (lambda d: d.pop("version") and d.update(version=0), "version"),
        (lambda d: d.update(surprise=1), "surprise: Extra inputs"),
        (lambda d: d.update(dtype="int8"), "dtype"),
        (lambda d: d["device"].update(multiprocessors=-1), "device.multiprocessors"),
        (lambda d: d["entries"].append(d["entries"][0]), "two entries for"),
        (lambda d: d["entries"][0].update(shape=[4096]), "entries.0.shape"),
        (lambda d: d["entries"][0].update(shape=[4096, 1 << 40]), "entries.0.shape.1"),
        (lambda d: d["entries"][1].update(density=1.5), "entries.1.density"),
        (lambda d: d["entries"][1].update(density=float("nan")), "entries.1.density"),
        (lambda d: d["entries"][0].update(ranges=[]), "entries.0.ranges"),
        (lambda d: d["entries"][0]["ranges"].pop(), "the last range, and no other"),
        (lambda d: d["entries"][0]["ranges"].insert(0, d["entries"][0]["ranges"][-1]), "no other"),
        (lambda d: d["entries"][0]["ranges"][1].update(max_tokens=2), "must rise"),
        (lambda d: d["entries"][0]["ranges"][0].update(max_tokens=0), "max_tokens"),
        (lambda d: d["entries"][0]["ranges"][1].update(max_tokens=65), "takes up to 64 tokens"),
        (
            lambda d: d["entries"][0]["ranges"][0].update(implementation="os.system"),
            "is not one of",
        ),
        (lambda d: d["entries"][0]["ranges"][2].update(implementation="gemv"), "up to 8 tokens"),
        (lambda d: d["entries"][1]["ranges"][0].update(implementation="gemv"), "is not one of"),
        (lambda d: d["entries"][0]["ranges"][0].update(implementation="flat_gemm"), "but once"),
        (lambda d: d["entries"][1].update(format="csr"), "unknown format 'csr'"),
        (lambda d: d["entries"][1].update(options={"n": 2}), "no option 'n'"),
        (lambda d: d["entries"][0]["measurements"][0]["microseconds"].update(gemv=-1), "gemv"),
    ],
)
def test_each_broken_rule_is_told_with_the_file_and_the_remedy(h200, tmp_path, damage, message):
    path = written(damaged(damage), table_path(GPU, "bfloat16"))
    with pytest.raises(TableError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value) and "emove" in str(error.value)
    with pytest.raises(TableError):  # nothing falls back in silence
        resolve(Weight((4096, 4096)), torch.bfloat16, "cuda")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b"[1, 2]", b"null", b'"a"'],
    ids=["empty", "cut", "not text", "deep", "long number", "list", "null", "string"],
)
def test_what_is_no_table_at_all(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_bytes(text)
    with pytest.raises(TableError, match="flashsparse tune"):
        read_table(path)


def test_a_fifo_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "table.json")  # reading it would wait for a writer, for ever
    with pytest.raises(TableError, match="not a regular file.*flashsparse tune"):
        read_table(tmp_path / "table.json")


def test_a_name_in_a_table_reaches_no_terminal(tmp_path):
    path = written(GOOD, tmp_path / "table.json")
    path.write_text(path.read_text().replace("{", '{"\\u001b[2J": 1, ', 1))
    with pytest.raises(TableError, match=r"\\x1b\[2J") as caught:
        read_table(path)
    assert str(caught.value).isprintable()


def test_a_file_of_any_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MAX_BYTES", 100)
    with pytest.raises(TableError, match="larger than 100 bytes"):
        read_table(written(GOOD, tmp_path / "table.json"))


def test_where_tables_are(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path / "mine"))
    name = "dataflow-sm90-132-nvidia-h200-float16.json"
    assert table_path(GPU, "float16") == tmp_path / "mine" / name
    monkeypatch.delenv("FLASHSPARSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert table_path(GPU, "float16").parent == tmp_path / "flashsparse"
