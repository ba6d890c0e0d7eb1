# SPDX-License-Identifier: Apache-2.0
"""Generates the tables that ship, flashsparse_plugin/dataflow/tables, from benchmarks/results.

    python benchmarks/dataflow.py            writes them
    python benchmarks/dataflow.py --check    fails where one is not what the results say

h200.json and h100.json hold measurements: layers of served models by gpu/layers.py, after another
kernel; others, and prompts, of zeros anywhere by spmm.py and dense ones by gemm.py, back to back.
Of other prompts than those the model tells which kernel is the fastest.
a100.json holds the estimates of the model of bytes and latencies for the dense ones on an A100.
Run benchmarks/tables.py afterwards, which writes the documents' tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import _results
import torch
from _spmm_goals import formats_of

from flashsparse_plugin.dataflow import BUCKETS, DeviceKey, Table, Weight, model
from flashsparse_plugin.dataflow.table import SHIPPED, Entry, Measurement, text_of
from flashsparse_plugin.dataflow.tuner import entry_of, packed_weight
from flashsparse_plugin.evaluation.kinds import KINDS
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.gpu import Gpu, find_gpu
from flashsparse_plugin.plan import FEW, LIBRARY, MANY, SPARSE

DENSE = "dense"
MEASURED = {"h200.json": "nvidia-h200", "h100.json": "nvidia-h100-80gb-hbm3"}  # table: folder
KEPT = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256)  # tokens whose times ship
Times = dict[int, dict[str, float]]  # seconds, by tokens and implementation


def dense_times(rows: Iterable[Mapping[str, Any]]) -> dict[Weight, Times]:
    """Times of gemm.csv, where the library is the fastest of three ways to call it."""
    found: dict[Weight, Times] = {}
    for row in rows:
        times = found.setdefault(Weight(_shape(row)), {})
        by_op = times.setdefault(row["tokens"], {"library": row["dense_us"] * 1e-6})
        by_op[row["op"]] = row["us"] * 1e-6
    return found


def packed_times(rows: Iterable[Mapping[str, Any]], format: str) -> dict[Weight, Times]:
    """A format's times of spmm.csv at BUCKETS, interpolated between the tokens measured."""
    measured: dict[tuple[tuple[int, int], int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["format"] != format:
            continue
        measured.setdefault((_shape(row), row["sparsity"]), []).append(row)
    found, scheme = {}, get_format(format).scheme(torch.float16)
    for (shape, sparsity), own in measured.items():
        measured_of = _measured(own)
        ends = [row["tokens"] for row in own]
        times = {
            tokens: {
                name: _between(us, tokens) * 1e-6
                for name, us in measured_of.items()
                if min(us) <= tokens <= max(us)
            }
            for tokens in BUCKETS
            if min(ends) <= tokens <= max(ends)
        }
        last = max(own, key=lambda row: row["tokens"])
        nbytes = round(last["us"] * last["packed_gb_s"] * 1e3)
        found[Weight(shape, scheme, round(1 - sparsity / 100, 2), nbytes)] = times
    return found


def served_times(rows: Iterable[Mapping[str, Any]], dtype: torch.dtype) -> dict[Weight, Times]:
    """Times of layers.csv, without those of other libraries' products of fewer bits."""
    found: dict[tuple[tuple[int, int], str], Times] = {}
    for row in (row for row in rows if row["kind"] in (DENSE, *KINDS)):
        times = found.setdefault((_shape(row), row["kind"]), {})
        for tokens in filter(str.isdigit, row):
            by_name = times.setdefault(int(tokens), {})
            by_name[row["implementation"]] = row[tokens] * 1e-6
    return {_weight(*key, dtype): times for key, times in found.items()}


def _key(weight: Weight) -> tuple[Any, ...]:
    title = DENSE if weight.scheme is None else weight.scheme.title
    return weight.shape, title, round(weight.density, 2)


def _beyond(weight: Weight, own: Times, before: Times, gpu: Gpu) -> Times:
    """Times of more tokens than layers.csv has: those measured before, or else the model's."""
    most, names = max(own), {name for times in own.values() for name in times}
    found = {tokens: times for tokens, times in before.items() if tokens > most}
    if found or weight.scheme is None:
        return found
    return {
        tokens: {name: model.seconds(name, weight, tokens, gpu) for name in names - {FEW}}
        for tokens in BUCKETS
        if tokens > most
    }


def _weight(shape: tuple[int, int], kind: str, dtype: torch.dtype) -> Weight:
    if kind == DENSE:
        return Weight(shape)
    return packed_weight(shape, KINDS[kind].scheme(dtype), KINDS[kind].density)


def _measured(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Microseconds of the sparse kernels, and of unpacking and the library, by tokens.

    Of a format with two kernels each, where rows tell them apart: the one for few tokens up to the
    most at which both were measured, the one for many from the least on.

    For few tokens only the sparse kernel was measured. Unpacking takes the same time for any number
    of tokens, so it is added to the time of the dense product.
    """
    both = [row for row in rows if "unpacked_us" in row]
    if not both:
        raise SystemExit(f"spmm.csv does not say what unpacking {rows[0]['shape']} takes")
    first = min(both, key=lambda row: row["tokens"])
    unpack = first["unpacked_us"] - first["dense_us"]
    sparse = {row["tokens"]: row.get("sparse_us", row["us"]) for row in rows}
    library = {row["tokens"]: row.get("unpacked_us", row["dense_us"] + unpack) for row in rows}
    crossing = [row for row in rows if f"{MANY}_us" in row]
    if not crossing:
        return {SPARSE: sparse, LIBRARY: library}
    least, most = (each(row["tokens"] for row in crossing) for each in (min, max))
    few = {tokens: us for tokens, us in sparse.items() if tokens < least}
    many = {tokens: us for tokens, us in sparse.items() if tokens > most}
    few |= {row["tokens"]: row[f"{FEW}_us"] for row in crossing}
    many |= {row["tokens"]: row[f"{MANY}_us"] for row in crossing}
    return {FEW: few, MANY: many, LIBRARY: library}


def _shape(row: Mapping[str, Any]) -> tuple[int, int]:
    out_features, in_features = map(int, row["shape"].split("x"))
    return out_features, in_features


def _between(found: Mapping[int, float], tokens: int) -> float:
    below = max(each for each in found if each <= tokens)
    above = min(each for each in found if each >= tokens)
    share = (tokens - below) / (above - below) if above > below else 0.0
    return found[below] + share * (found[above] - found[below])


def tables() -> dict[str, Table]:
    """The tables by the names of their files."""
    found: dict[str, Table] = {}
    for name, folder in MEASURED.items():
        gemm, spmm = (
            _results.read(_results.FOLDER / folder / f"{program}.csv")
            for program in ("gemm", "spmm")
        )
        served = _results.read(_results.FOLDER / folder / "layers.csv")
        measured = dense_times(gemm["rows"])
        for format in formats_of(spmm["rows"]):
            measured |= packed_times(spmm["rows"], format)
        about = gemm["about"]
        gpu = find_gpu(about["gpu"], (9, 0))
        times = {_key(weight): (weight, own) for weight, own in measured.items()}
        for weight, own in served_times(served["rows"], torch.bfloat16).items():
            before = times.get(_key(weight), (weight, {}))[1]
            times[_key(weight)] = weight, {**_beyond(weight, own, before, gpu), **own}
        found[name] = _table(
            about["gpu"],
            gpu,
            about["dtype"],
            (entry_of(*each) for each in times.values()),
            source="measured",
            date=min(each["about"]["date"][:10] for each in (gemm, spmm, served)),
        )
    a100 = find_gpu("A100", (8, 0))
    found["a100.json"] = _table(
        a100.name,
        a100,
        about["dtype"],
        (
            entry_of(weight, model.times(weight, a100), model.DOUBT)
            for weight in measured
            if weight.scheme is None
        ),
        source="model",
    )
    return found


def _table(name: str, gpu: Gpu, dtype: str, entries: Iterable[Entry], **about: Any) -> Table:
    """Makes a table; of a measured one with some of its times, by which `auto` chooses formats."""
    key = DeviceKey(name=name, capability=gpu.capability, multiprocessors=gpu.multiprocessors)
    tokens = KEPT if about["source"] == "measured" else ()
    kept = [_with_times(entry, tokens) for entry in entries]
    return Table(device=key, dtype=dtype, entries=kept, **about)


def _with_times(entry: Entry, tokens: Sequence[int]) -> Entry:
    """The entry with the fastest implementation's times for some numbers of tokens."""
    kept = []
    for each in entry.measurements:
        if each.tokens in tokens:
            fastest = min(each.microseconds.items(), key=lambda pair: pair[1])
            kept.append(Measurement(tokens=each.tokens, microseconds=dict([fastest])))
    return entry.model_copy(update={"measurements": kept})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    stale = 0
    for name, table in tables().items():
        path, text = SHIPPED / name, text_of(table)
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if check:
            print(f"{path.name} differs from benchmarks/results: run python benchmarks/dataflow.py")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"{path.name}: {len(table.entries)} layers")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
