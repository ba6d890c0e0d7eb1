# SPDX-License-Identifier: Apache-2.0
"""The tables that ship: made from the committed results, and safe; who decides, in which order."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import _results
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsparse_plugin.dataflow import BUCKETS, DENSE, DeviceKey, TableError, Weight, table
from flashsparse_plugin.dataflow.decision import ranges_of, resolve
from flashsparse_plugin.dataflow.table import (
    SHIPPED,
    Table,
    read_table,
    shipped_table,
    table_path,
    text_of,
    write_table,
)
from flashsparse_plugin.evaluation.kinds import KINDS
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.gpu import GPUS, find_gpu
from flashsparse_plugin.plan import NO_LIMIT, Plan

ROOT = Path(__file__).parents[2]
MEASURED = {"h200.json": "nvidia-h200", "h100.json": "nvidia-h100-80gb-hbm3"}
H200 = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
NARROW = Weight((4096, 4096))
SCHEME = get_format("tiled_csl").scheme(torch.float16)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Has torch tell of a GPU; the cache is empty, and the shipped tables are a copy."""
    shipped = tmp_path / "tables"
    shutil.copytree(SHIPPED, shipped)
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "SHIPPED", shipped)
    table._cached.cache_clear()

    def tell(name="NVIDIA H200", capability=(9, 0), multiprocessors=132):
        major, minor = capability
        found = SimpleNamespace(
            name=name, major=major, minor=minor, multi_processor_count=multiprocessors
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
        return shipped

    yield tell
    table._cached.cache_clear()


def test_they_are_what_the_results_say():
    command = [sys.executable, str(ROOT / "benchmarks" / "dataflow.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    sources = {path.name: read_table(path).source for path in SHIPPED.iterdir()}
    assert sources == dict.fromkeys(MEASURED, "measured") | {"a100.json": "model"}


def _dense(folder):
    """Of dense layers in layers.csv microseconds by implementation, by tokens."""
    found = {}
    for row in _results.read(_results.FOLDER / folder / "layers.csv")["rows"]:
        if row["kind"] == "dense":
            times = found.setdefault(tuple(map(int, row["shape"].split("x"))), {})
            for tokens in filter(str.isdigit, row):
                times.setdefault(int(tokens), {})[row["implementation"]] = row[tokens]
    return found


@pytest.mark.parametrize(("name", "folder"), MEASURED.items())
def test_what_they_choose_was_never_slower_than_the_library(name, folder):
    found = read_table(SHIPPED / name)
    served = _dense(folder)
    for shape, times in served.items():
        flow = found.find(Weight(shape)).plan()
        for tokens, taken in times.items():
            assert taken[flow.implementation(tokens)] <= taken["library"]
    rows = _results.read(_results.FOLDER / folder / "gemm.csv")["rows"]
    rows = [row for row in rows if tuple(map(int, row["shape"].split("x"))) not in served]
    assert len(rows) > 100 and len(served) == 58
    for row in rows:
        entry = found.find(Weight(tuple(map(int, row["shape"].split("x")))))
        flow = entry.plan()
        if flow.implementation(row["tokens"]) == row["op"]:
            assert row["us"] * 1.02 <= row["dense_us"]


@pytest.mark.parametrize(("name", "folder"), MEASURED.items())
def test_prompts_take_what_was_faster_for_most_tokens(name, folder):
    """The library, for nearly all layers of an H200: tables without 2048 tokens never chose it."""
    found, scheme = read_table(SHIPPED / name), get_format("tiled_bitmap").scheme(torch.float16)
    rows = _results.read(_results.FOLDER / folder / "spmm.csv")["rows"]
    chosen = []
    for row in rows:
        if (row["tokens"], row["format"]) != (2048, "tiled_bitmap"):
            continue
        shape = tuple(map(int, row["shape"].split("x")))
        entry = found.find(Weight(shape, scheme, 1 - row["sparsity"] / 100, 1))
        chosen.append(entry.plan().implementation(8192))
        figure = {"library": "unpacked_us", "many": "sparse_us"}[chosen[-1]]
        assert row[figure] <= 1.01 * min(row["unpacked_us"], row["sparse_us"])
    assert len(chosen) == 100 and set(chosen) == {"library", "many"}


def test_a_gpu_finds_the_table_of_its_class(gpu):
    gpu()
    for dtype in (torch.bfloat16, torch.float16):
        flow = resolve(NARROW, dtype, "cuda")
        assert flow.source == "shipped"
        assert "4096x4096: measured on an NVIDIA H200, 20" in flow.reason
    packed = resolve(Weight((4096, 4096), SCHEME, 0.32, 1 << 24), torch.float16, "cuda")
    assert packed.source == "shipped" and packed.implementation(16) == "sparse"
    assert packed.most("sparse") in BUCKETS
    gpu("NVIDIA H100 80GB HBM3")
    assert "measured on an NVIDIA H100" in resolve(NARROW, torch.float16, "cuda").reason
    gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108)
    flow = resolve(NARROW, torch.float16, "cuda")
    assert flow.source == "shipped" and "estimated by the model of an A100" in flow.reason


def test_the_order_user_then_package_then_model(gpu):
    gpu()
    own = read_table(SHIPPED / "h200.json").entries[0].model_copy(update={"shape": (4096, 4096)})
    mine = Table(device=H200, dtype="float16", date="2020-02-02", entries=[own])
    write_table(mine, table_path(H200, "float16"))
    flow = resolve(NARROW, torch.float16, "cuda")
    assert flow.source == "table" and flow.ranges == own.plan().ranges
    assert "measured on an NVIDIA H200, 2020-02-02, in " in flow.reason
    assert str(table_path(H200, "float16")) in flow.reason
    # What the user's table has not, the package's has, and what neither has, the model estimates.
    assert resolve(NARROW, torch.bfloat16, "cuda").source == "shipped"
    assert resolve(Weight((12288, 4096)), torch.float16, "cuda").source == "shipped"
    flow = resolve(Weight((12288, 4097)), torch.float16, "cuda")
    assert flow.source == "model" and "model of an H200" in flow.reason
    gpu("NVIDIA RTX 9999", (12, 0))  # of the H100's class, and nothing ships for its generation
    assert resolve(NARROW, torch.float16, "cuda").source == "model"


def test_only_16_bits_leave_a_choice(gpu):
    gpu()
    flow = resolve(NARROW, torch.float32, "cuda")
    assert (flow.source, flow.implementation(1)) == ("device", "library")
    assert "float32" in flow.reason


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(source="hearsay"), "source"),
        (lambda d: d.update(date="yesterday"), "date"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d["device"].update(name="NVIDIA A100"), "was made for an NVIDIA A100"),
        (lambda d: d["entries"].append(d["entries"][0]), "two entries"),
        (lambda d: d["entries"][0].update(ranges=[
            {"max_tokens": 9, "implementation": "gemv"},
            {"max_tokens": None, "implementation": "library"}]), "up to 8 tokens"),
    ],
)  # fmt: skip
def test_a_damaged_one_is_refused(gpu, damage, message):
    path = gpu() / "h200.json"
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(TableError, match=message) as error:
        resolve(NARROW, torch.float16, "cuda")
    assert str(path) in str(error.value) and "install" in str(error.value)


def test_a_table_is_a_line_an_entry():
    found = read_table(SHIPPED / "h200.json")
    text = text_of(found)
    assert len(text.splitlines()) == len(found.entries) + 2
    assert Table.model_validate(json.loads(text)) == found


TIMES = st.dictionaries(
    st.sampled_from(BUCKETS),
    st.tuples(*[st.floats(1.0, 100.0)] * 3),
    min_size=1,
)


def plan_of_ranges(ranges):
    return Plan.of((each.max_tokens, each.implementation) for each in ranges)


@settings(max_examples=150, deadline=None)
@given(times=TIMES, margin=st.sampled_from([0.0, 0.02, 0.1]))
def test_what_is_chosen_is_faster_than_the_library_by_the_margin(times, margin):
    found = {
        tokens: {
            name: value
            for (name, (most, *_)), value in zip(DENSE.items(), each, strict=True)
            if most is None or tokens <= most
        }
        for tokens, each in times.items()
    }
    flow = plan_of_ranges(ranges_of(found, DENSE, margin))
    assert list(DENSE)[-1] == flow.ranges[-1].implementation and flow.ranges[-1].max_tokens is None
    for tokens, by_name in found.items():
        name = flow.implementation(tokens)
        assert name == "library" or by_name[name] * (1 + margin) <= by_name["library"]
    # Between two numbers of tokens that were looked at no kernel is trusted beyond the first.
    for tokens in range(1, 70):
        above = min((each for each in found if each >= tokens), default=None)
        assert flow.implementation(tokens) == (flow.implementation(above) if above else "library")


def test_most():
    flow = Plan.of([(4, "gemv"), (None, "library")])
    assert [flow.most(name) for name in DENSE] == [4, 0, NO_LIMIT]


def test_classes():
    assert {find_gpu(each.name, each.capability) for each in GPUS} == set(GPUS)


@pytest.mark.parametrize("name", KINDS)
def test_a_packed_layer_finds_its_times(name):
    """As `prepare()` asks on an H200: by what is counted in a weight, not by what was assumed."""
    kind, key = KINDS[name], DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)
    packed = kind.pack((1024, 2048), torch.bfloat16, torch.device("cpu"))
    table = shipped_table(find_gpu(key.name, key.capability), key)
    found = table.find(Weight.of(packed.transcode(kind.scheme(torch.bfloat16))))
    assert found is not None and found.measurements
