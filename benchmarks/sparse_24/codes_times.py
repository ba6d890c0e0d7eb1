# SPDX-License-Identifier: Apache-2.0
"""What products by codes of 8 bits take, by every way there is to multiply them.

Scales of rows, and of groups of 128, 64 and 32 columns, by kernels and unpacked; x of 16 bits and
x rounded to such codes, by the kernel for many tokens, and by the one for few: its own plan, and
the fastest of its launches. Cold weights, CUDA graphs; rounding x is in the timing. A row a way,
layer and number of tokens. Called by check.py, which checks all of them first.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.dataflow.tuner import cold_bytes_of, random_weight, replayed
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.pattern.sparse_24.layout import layout_of
from flashsparse_plugin.ops import ops
from flashsparse_plugin.plan import FEW, LIBRARY, MANY, Plan

from . import launches

LAYERS = ((28672, 7168), (28672, 4096), (4096, 14336), (4096, 4096))
TOKENS = (1, 8, 16, 32, 64)
GROUPS = (None, 128, 64, 32)
REPLAYS, LAUNCHES = 11, 20


class Way(NamedTuple):
    """One way to multiply a packed weight by x."""

    name: str
    multiply: Callable[[PackedWeight, Tensor], Tensor]


def rounded(packed: PackedWeight, x: Tensor, few_tokens: int) -> Tensor:
    """By codes of x."""
    units, scales = packed.tensors["units"], packed.tensors["weight_scale"]
    values = packed.scheme.values["values"]
    return ops.sparse_24_linear_rounded(
        x, units, scales, packed.shape[0], packed.dtype, values, None, few_tokens
    )


def ways(packed: PackedWeight, tokens: int) -> Iterator[Way]:
    """All ways for a number of tokens on this GPU; launches come last."""
    capability, options = torch.cuda.get_device_capability(), packed.scheme.options
    hopper, fp8_mma = capability == (9, 0), capability == (8, 9) or capability[0] == 12
    names = (FEW, MANY, LIBRARY) if hopper else (FEW, LIBRARY)
    for name in names:
        plan = Plan.only(name)
        yield Way(name, lambda packed, x, plan=plan: packed.linear(x, None, plan))
    if options.group is not None:
        return
    if hopper:
        yield Way("many rounded", partial(rounded, few_tokens=0))
    if options.values == "int8" or fp8_mma:
        yield Way("few rounded", partial(rounded, few_tokens=64))
        properties = torch.cuda.get_device_properties("cuda")
        if properties.shared_memory_per_block_optin < launches.SHARED_BYTES:
            return
        for launch in launches.plans(
            packed.shape, tokens, properties.multi_processor_count, LAUNCHES,
            layout_of(options), 1,
        ):  # fmt: skip
            yield Way(f"few rounded: {launch}", launch.linear_rounded)


def write(path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Measures all of it, writes a row a way, and prints a line for each number of tokens."""
    device, form, rows = torch.device("cuda"), Sparse24(), []
    for shape, values, group in product(LAYERS, ("fp8_e4m3", "int8"), GROUPS):
        options = PatternOptions(n=2, m=4, values=values, group=group)
        weight = options.keep_largest(random_weight(shape, 1.0, dtype, device))
        copies = [form.pack(weight, form.scheme(dtype, options.model_dump()))]
        while sum(each.nbytes for each in copies) < cold_bytes_of(device):
            tensors = {name: t.clone() for name, t in copies[0].tensors.items()}
            copies.append(PackedWeight(copies[0].scheme, copies[0].shape, tensors))
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1], device=device).to(dtype)
            found = {way.name: microseconds(way, copies, x) for way in ways(copies[0], tokens)}
            layer = {"layer": f"{shape[0]}x{shape[1]}", "values": options.title, "tokens": tokens}
            rows += [layer | {"way": name, "us": round(us, 2)} for name, us in found.items()]
            launched = {name: us for name, us in found.items() if ": " in name}
            shown = {name: us for name, us in found.items() if name not in launched}
            if launched:
                fastest = min(launched, key=launched.__getitem__)
                shown[fastest] = launched[fastest]
            told = "; ".join(f"{name} {us:.1f}" for name, us in shown.items())
            print(f"{' '.join(map(str, layer.values()))} tokens: {told} us", flush=True)
            with path.open("w", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
    print(f"{torch.cuda.get_device_name()}, {dtype}, torch {torch.__version__}; written to {path}")


def microseconds(way: Way, copies: list[PackedWeight], x: Tensor) -> float:
    """The median of replays of a CUDA graph, in which copies of the weight take turns."""
    turn = 0

    def call() -> Tensor:
        nonlocal turn
        turn = (turn + 1) % len(copies)
        return way.multiply(copies[turn], x)

    samples = sorted(replayed(call, len(copies), REPLAYS))
    return samples[len(samples) // 2] * 1e6
