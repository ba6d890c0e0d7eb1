# SPDX-License-Identifier: Apache-2.0
"""What the kernels' accesses to memory cost a GPU, counted by the emulator, gets no worse.

kernels/wavefronts.csv holds, for each access in the order of the source, how often a warp makes it
(requests), the turns of shared memory that takes (wavefronts; where banks conflict, more than it
must), and the 32-byte sectors of global memory. A worse figure fails until the file is changed on
purpose, by

    EXPECTTEST_ACCEPT=1 python -m pytest tests/kernels/test_wavefronts.py
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from emulated_decode import fp8, random_decode
from emulated_dense import Case as DenseCase
from emulated_exact_units import Plan as ExactPlan
from emulated_exact_units import random_case as random_exact
from emulated_gather import HOPPER, random_case
from emulated_hybrid_units import Plan as HybridPlan
from emulated_hybrid_units import random_case as random_hybrid
from emulated_linear import Case
from emulated_nm_spmm import COMPILED
from emulated_nm_spmm import random_case as random_spmm
from emulated_sparse_24 import Plan
from emulated_sparse_24 import random_case as random_sparse_24
from emulated_tiled_bitmap import CODES as BITMAP_CODES
from emulated_tiled_bitmap import ROUNDED as BITMAP_ROUNDED
from emulated_tiled_bitmap import Plan as BitmapPlan
from emulated_tiled_bitmap import random_case as random_bitmap
from emulated_tiled_bitmap import random_codes as random_bitmap_codes
from emulation import KERNELS
from kernel_weights import random_weight

from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops import ops

COMMITTED = KERNELS / "wavefronts.csv"
FIGURES = ("requests", "wavefronts", "sectors")
Rows = dict[tuple[str, str, str], dict[str, int]]  # by kernel, case and access


def fed(weight: torch.Tensor, words: torch.Tensor, offsets: torch.Tensor) -> bytes:
    """A case for an unpack driver."""
    header = np.array([*weight.shape, len(words), 0], dtype=np.int64).tobytes()
    return header + offsets.numpy().tobytes() + words.numpy().tobytes()


def count(binary: Path, cases: bytes, folder: Path) -> list[dict]:
    """What a driver counts over the cases that it is fed."""
    path = folder / "counts.json"
    subprocess.run([str(binary), str(path)], input=cases, stdout=subprocess.DEVNULL, check=True)
    return json.loads(path.read_text())


def accesses(counts: list[dict]) -> dict[str, dict[str, int]]:
    """Named by what they do and their order in the source: lines change with every edit."""
    seen: Counter[str] = Counter()
    rows = {}
    for each in sorted(counts, key=lambda each: (each["file"], each["line"])):
        seen[each["operation"]] += 1
        name = f"{each['operation']} {seen[each['operation']]}"
        rows[name] = {figure: each[figure] for figure in FIGURES}
    return rows


def unpack_rows(driver, folder: Path) -> Rows:
    """One tile at each of the densities that the format is for."""
    rows: Rows = {}
    for zeros in (50, 70, 80, 90):
        weight = random_weight((128, 64), zeros / 100, torch.bfloat16, seed=0)
        words, offsets = ops.tiled_csl_pack(weight)
        counts = count(
            driver("tiled_csl/unpack_driver", "plain"), fed(weight, words, offsets), folder
        )
        for name, row in accesses(counts).items():
            rows["tiled_csl::unpack_kernel", f"128x64 {zeros}%", name] = row
    return rows


def bitmap_rows(driver, folder: Path) -> Rows:
    """One unit of tiled_bitmap, packed (its lines counted and summed up before) and unpacked."""
    rows: Rows = {}
    for zeros in (50, 80):
        weight = random_weight((16, 256), zeros / 100, torch.bfloat16, seed=0)
        dense = np.array([16, 256, 0, 0], dtype=np.int64).tobytes()
        dense += weight.view(torch.int16).numpy().tobytes()
        packed = fed(weight, *ops.tiled_bitmap_pack(weight))
        for op, case in (("pack", dense), ("unpack", packed)):
            counts = count(driver(f"tiled_bitmap/{op}_driver", "plain"), case, folder)
            for name, row in accesses(counts).items():
                rows[f"tiled_bitmap::{op}", f"16x256 {zeros}%", name] = row
    return rows


def linear_rows(driver, folder: Path) -> Rows:
    """Two tile rows, as planned for a GPU of two multiprocessors."""
    rows: Rows = {}
    plans = {"Hopper": -1, "other": -2}
    cases = [(zeros, 8, "Hopper") for zeros in (50, 70, 80, 90)]
    cases += [(80, tokens, "Hopper") for tokens in (16, 32, 64)]
    cases += [(zeros, 16, "other") for zeros in (50, 80)] + [(80, 32, "other")]
    for zeros, tokens, gpu in cases:
        weight = random_weight((256, 1024), zeros / 100, torch.bfloat16, seed=0)
        x = torch.ones(tokens, 1024, dtype=torch.bfloat16)
        case = Case(weight, x, shape=plans[gpu], blocks=2)
        counts = count(driver("tiled_csl/linear_driver", "plain"), case.encode(), folder)
        for name, row in accesses(counts).items():
            told = f"256x1024 {zeros}% {tokens} tokens {gpu}"
            rows["tiled_csl::linear_kernel", told, name] = row
    return rows


def dense_rows(driver, folder: Path) -> Rows:
    """A weight that is cut along K, by kernels of their narrowest shapes."""
    rows: Rows = {}
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(128, 2048, generator=generator).bfloat16()
    for name, tokens, rest in (
        ("flat_gemm", 8, {"shape": 0}),
        ("flat_gemm", 64, {"shape": 6}),
        ("gemv", 2, {"gemv": True, "shape": 3}),
    ):
        case = DenseCase(weight, torch.ones(tokens, 2048).bfloat16(), split=2, **rest)
        counts = count(driver("dense_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            rows[f"dense::{name}_kernel", f"128x2048 {tokens} tokens", access] = row
    return rows


def decode_rows(driver, folder: Path) -> Rows:
    """Two splits of two warps each, joined."""
    rows: Rows = {}
    for head_dim in (64, 80, 96, 128, 256):
        case = random_decode(1, 1, 8, head_dim, 1024, splits=2, warps=2, page=16)
        for kernel, each in (("decode", case), ("decode_fp8", fp8(case))):
            counts = count(driver("decode_driver", "plain"), each.encode(), folder)
            for name, row in accesses(counts).items():
                told = f"8 heads of {head_dim}, 1024 positions in pages of 16"
                rows[f"unified_max::{kernel}_kernel", told, name] = row
    return rows


def sparse_24_rows(driver, folder: Path) -> Rows:
    """Warps beside each other along rows and columns, and two units of rows to a warp."""
    rows: Rows = {}
    int4 = PatternOptions(n=2, m=4, values="int4", group=128)
    int8 = PatternOptions(n=2, m=4, values="int8")
    for told, plan, rest in (
        ("8 tokens", Plan(0, 2, 2, 2, 2, 1), {}),
        ("64 tokens", Plan(8, 2, 1, 2, 2, 1), {}),
        ("8 tokens, int4 by 128", Plan(1, 2, 1, 2, 2, 1), {"options": int4}),
        ("8 tokens, int8 x int8, x rounded", Plan(1, 2, 1, 2, 2, 1), {"options": int8}),
    ):
        kernel = "linear_codes" if "rounded" in told else "linear"
        case = random_sparse_24(256, 2048, int(told.split()[0]), 1, plan=plan, **rest)
        counts = count(driver(f"sparse_24/{kernel}_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            rows[f"sparse_24::{kernel}_kernel", f"256x2048 {told}", access] = row
    return rows


def exact_rows(driver, folder: Path) -> Rows:
    """Few exceptions and many; warps along rows and columns, and two units of rows to a warp."""
    rows: Rows = {}
    for kernel, told, number, plan in (
        ("linear", "8 tokens", 0, ExactPlan(0, 2, 2, 2, 2, 1)),
        ("linear", "16 tokens, many exceptions", 2, ExactPlan(3, 2, 1, 2, 2, 1)),
        ("wgmma", "64 tokens", 0, (2, 1, 1, 4, 1)),
    ):
        case = random_exact(256, 1024, int(told.split()[0]), number, plan=plan)
        counts = count(driver(f"exact_units/{kernel}_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            rows[f"exact_units::{kernel}_kernel", f"256x1024 {told}", access] = row
    return rows


def hybrid_rows(driver, folder: Path) -> Rows:
    """Half of the units dense; warps along rows and columns, and two units of rows to a warp."""
    rows: Rows = {}
    int4 = {"values": "int4", "group": 128}
    for told, number, plan, rest in (
        ("8 tokens", 0, HybridPlan(0, 2, 2, 2, 2, 1), {}),
        ("16 tokens", 0, HybridPlan(3, 2, 1, 2, 2, 1), {}),
        ("8 tokens, int4 by 128", 0, HybridPlan(1, 2, 1, 2, 2, 1), {"options": int4}),
    ):
        case = random_hybrid(256, 1024, int(told.split()[0]), number, plan=plan, **rest)
        counts = count(driver("hybrid_units/linear_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            rows["hybrid_units::linear_kernel", f"256x1024 {told}", access] = row
    return rows


def bitmap_linear_rows(driver, folder: Path) -> Rows:
    """Warps beside each other along rows and columns, and two units of rows to a warp."""
    rows: Rows = {}
    for density, tokens, plan in (
        (0.5, 8, BitmapPlan(0, 2, 2, 0, 2, 84, 1)),
        (0.2, 8, BitmapPlan(2, 2, 1, 5, 2, 88, 1)),
        (0.2, 64, BitmapPlan(10, 1, 1, 0, 2, 142, 1)),
    ):
        case = random_bitmap(64, 1024, tokens, 1, density, plan=plan)
        counts = count(driver("tiled_bitmap/linear_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            told = f"64x1024 {1 - density:.0%} {tokens} tokens"
            rows["tiled_bitmap::linear_kernel", told, access] = row
    for operands, told in ((BITMAP_CODES, "codes"), (BITMAP_ROUNDED, "codes by codes")):
        plan = BitmapPlan(0, 2, 2, 0, 2, 84, 1)
        case = random_bitmap_codes(64, 1024, 8, 1, 0.5, plan=plan, operands=operands)
        counts = count(driver("tiled_bitmap/linear_driver", "plain"), case.encode(), folder)
        for access, row in accesses(counts).items():
            rows["tiled_bitmap::linear_kernel", f"64x1024 50% 8 tokens, {told}", access] = row
    case = random_bitmap_codes(64, 1024, 8, 1, 0.5, operands=BITMAP_ROUNDED)
    counts = count(driver("tiled_bitmap/prompt_driver", "plain"), case.encode(), folder)
    for access, row in accesses(counts).items():
        rows["tiled_bitmap: codes of a prompt", "64x1024 50% 8 tokens", access] = row
    return rows


def gather_rows(driver, folder: Path) -> Rows:
    """Two units of rows, as planned for a GPU of two multiprocessors."""
    rows: Rows = {}
    native = ((16, 8, 32), (8, 8, 32), (4, 8, 32), (16, 32, 32), (16, 8, 8))
    for n, tokens, length, values, group in (
        *((*case, "native", None) for case in native),
        (8, 8, 32, "int8", None),
        (8, 8, 32, "int4", 128),
    ):
        sizes, gpu = (2 * length, 2048, tokens), (2, HOPPER[1])
        case = random_case(*sizes, n, 32, length, 1, values, group, gpu=gpu)
        counts = count(driver("nm_gather/linear_driver", "plain"), case.encode(), folder)
        for name, row in accesses(counts).items():
            told = f"{2 * length}x2048 {n}:32, L={length}, {tokens} tokens"
            told += "" if values == "native" else f", {values}"
            rows["nm_gather::linear_kernel", told, name] = row
    return rows


def tiles_rows(driver, folder: Path) -> Rows:
    """A tile of 128 tokens and two sets of warps; the copies of bulk are not counted."""
    rows: Rows = {}
    for n, length, shape, values in (
        *((16, 64, 0, "native"), (8, 64, 0, "native"), (4, 64, 0, "native")),
        *((16, 32, 2, "native"), (8, 64, 9, "int8")),
    ):
        plan = (shape, 2, 1, 2, 2, 1, 1)
        case = random_case(2 * length, 1024, 128, n, 32, length, 1, values, plan=plan)
        counts = count(driver("nm_gather/tiles_driver", "plain"), case.encode(), folder)
        for name, row in accesses(counts).items():
            told = f"{2 * length}x1024 {n}:32, L={length}, 128 tokens"
            told += "" if values == "native" else f", {values}"
            rows["nm_gather::tiles_kernel", told, name] = row
    return rows


def spmm_rows(driver, folder: Path) -> Rows:
    """The paper's largest tile, x whole, and the widest, x packed."""
    rows: Rows = {}
    for number, kernel in enumerate(COMPILED):
        wanted = (64, 2, False), (128, 2, True)
        if kernel.rows < 128 or (kernel.tokens, kernel.stages, kernel.packing) not in wanted:
            continue
        case = random_spmm(kernel.rows, 256, kernel.tokens, 8, 32, 32, 1, plan=(number, 1))
        counts = count(driver("nm_spmm/linear_driver", "plain"), case.encode(), folder)
        packing = ", packing" if kernel.packing else ""
        told = f"{kernel.rows}x256 8:32, L=32, {kernel.tokens} tokens{packing}"
        rows |= {("nm_spmm", told, name): row for name, row in accesses(counts).items()}
    return rows


KERNEL_ROWS = (
    dense_rows,
    linear_rows,
    unpack_rows,
    bitmap_rows,
    decode_rows,
    sparse_24_rows,
    exact_rows,
    hybrid_rows,
    bitmap_linear_rows,
    gather_rows,
    tiles_rows,
    spmm_rows,
)


def read_committed() -> Rows:
    with COMMITTED.open() as file:
        return {
            (row["kernel"], row["case"], row["access"]): {name: int(row[name]) for name in FIGURES}
            for row in csv.DictReader(file)
        }


def write(rows: Rows) -> None:
    with COMMITTED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kernel", "case", "access", *FIGURES))
        writer.writerows((*key, *row.values()) for key, row in rows.items())


def worse(rows: Rows, committed: Rows) -> list[str]:
    found = [f"{key} is new or gone" for key in rows.keys() ^ committed.keys()]
    for key in rows.keys() & committed.keys():
        for figure in FIGURES:
            before, now = committed[key][figure], rows[key][figure]
            if now > before:
                found.append(f"{', '.join(key)}: {figure} {before} -> {now}")
    return sorted(found)


def test_no_access_got_dearer(driver, tmp_path):
    rows: Rows = {}
    for kernel_rows in KERNEL_ROWS:
        rows |= kernel_rows(driver, tmp_path)
    if os.environ.get("EXPECTTEST_ACCEPT") == "1":
        write(rows)
    assert rows and worse(rows, read_committed()) == []


def test_the_order_of_words_is_worth_its_while(driver, tmp_path):
    """A warp that stored every fourth word, as vector loads would have it, would pay for it."""
    weight = random_weight((128, 64), 0.8, torch.bfloat16, seed=0)
    words, offsets = ops.tiled_csl_pack(weight)
    whole = len(words) // 128 * 128
    every_fourth = words[:whole].view(-1, 32, 4).transpose(1, 2).reshape(-1)
    costs = []
    for stream in (words, torch.cat([every_fourth, words[whole:]])):
        counts = count(
            driver("tiled_csl/unpack_driver", "plain"), fed(weight, stream, offsets), tmp_path
        )
        stores = accesses(counts)["store_shared 2"]
        costs.append(stores["wavefronts"] / stores["requests"])
    assert costs[0] < 1.3 and costs[1] > 3


def test_what_is_worse():
    committed = read_committed()
    assert committed and worse(committed, committed) == []
    key = next(iter(committed))
    dearer = committed | {key: committed[key] | {"wavefronts": committed[key]["wavefronts"] + 1}}
    (told,) = worse(dearer, committed)
    assert "wavefronts" in told and worse(committed, dearer) == []
    assert worse({}, committed) == worse(committed, {}) != []
