# SPDX-License-Identifier: Apache-2.0
"""What do prompts by int8 codes on both sides take, and from how many tokens is unpacking faster?

    python benchmarks/tiled_bitmap/prompts.py --csv prompts.csv

First a check: the kernel for few tokens and the library between our kernels give the same bits, and
both are right by float64. Then both, for numbers of tokens, beside cuBLAS, dense fp8 and the part
of it that is the library's product of int8 with int8. Cold weights, CUDA graphs, medians; rounding
x is in the timing of ours, and not in that of the others. Ends with status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]
from _baselines import Dense, activations
from _device import Stopwatch, _formats, _measure, cold_bytes
from _layers import Layer, layer

import flashsparse_plugin as fs
from flashsparse_plugin import PackedWeight
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.values.activations import rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.plan import LIBRARY, SPARSE, Plan

LAYERS = ("28672x7168", "4096x14336", "4096x4096")
ZEROS, TOKENS = (50, 80), (32, 64, 96, 128, 192, 256, 512, 2048)
MOST_SPARSE = 512  # tokens by the kernel for few: beyond, time is in proportion
CHECKED = (  # rows, columns, tokens
    (1, 1, 1), (16, 256, 17), (100, 1300, 64), (1000, 5001, 65), (4096, 4096, 200),
    (28672, 7168, 4096),
)  # fmt: skip
OPTIONS = {"values": "int8", "activations": "int8"}


def pack(weight: Tensor) -> PackedWeight:
    return fs.pack(weight, "tiled_bitmap", **OPTIONS).prepare(weight.device)


def by(implementation: str, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return packed.linear(x, bias, Plan.only(implementation))


def check() -> int:
    """The number of products that were wrong."""
    wrong = 0
    for number, (rows, cols, tokens) in enumerate(CHECKED):
        dtype = torch.bfloat16 if number % 2 else torch.float16
        packed = pack(random_weight((rows, cols), (0.5, 0.2, 1.0)[number % 3], dtype, "cuda"))
        x, bias = (
            torch.randn(*size, device="cuda").to(dtype) for size in ((tokens, cols), (rows,))
        )
        if tokens > 20:
            x[3, 0], x[17, cols - 1] = torch.nan, torch.inf
        sparse, library = (by(name, packed, x, bias) for name in (SPARSE, LIBRARY))
        same = torch.equal(sparse.view(torch.int16), library.view(torch.int16))
        codes, scales = fs.get_format("tiled_bitmap").codes(packed), packed.tensors["weight_scale"]
        weight = codes.double() * scales.double()
        exact = rounded_tokens(x[:64], VALUE_TYPES["int8"]) @ weight.T + bias.double()
        finite = exact.isfinite()
        off = (library[:64].double() - exact)[finite].abs().max()
        bound = exact[finite].abs().max() * torch.finfo(dtype).eps
        is_right = bool(same and off <= bound and torch.equal(finite, library[:64].isfinite()))
        wrong += not is_right
        told = f"{rows}x{cols}, {tokens} tokens, {dtype}: off by {off:.2g} of {bound:.2g}"
        print(f"{'right' if is_right else 'WRONG'}  {told}{'' if same else ', other bits'}")
    print(f"{wrong} of {len(CHECKED)} products are wrong", flush=True)
    return wrong


class Timer:
    """Times calls over copies of weights that take turns."""

    def __init__(self, stopwatch: Stopwatch):
        self._stopwatch = stopwatch

    def packed(self, weight: PackedWeight, multiply: Callable[[PackedWeight], Any]) -> float:
        copies = _measure.Rotation(
            partial(_formats.copy_of, weight), weight.nbytes, cold_bytes(torch.device("cuda"))
        )
        return self._time(lambda: multiply(copies()), len(copies))

    def int8(self, weight: Tensor, tokens: int) -> float:
        """Of the library's product alone."""
        copies = _measure.Rotation(weight.clone, weight.nbytes, cold_bytes(weight.device))
        x = torch.randint(-127, 128, (tokens, weight.shape[1]), device="cuda", dtype=torch.int8)
        return self._time(lambda: torch._int_mm(x, copies().T), len(copies))

    def _time(self, call: Callable[[], Any], copies: int) -> float:
        return round(self._stopwatch(call, copies).microseconds, 2)


def times(own: Layer, zeros: int, timer: Timer) -> Iterator[dict[str, Any]]:
    """A row a way and number of tokens."""
    packed = pack(random_weight(own.shape, 1 - zeros / 100, torch.float16, "cuda"))
    weight = fs.get_format("tiled_bitmap").codes(packed)
    for count in TOKENS:
        x = activations(count, own, packed.dtype, weight.device)
        found = {"unpacked": timer.packed(packed, partial(by, LIBRARY, x=x))}
        if count <= MOST_SPARSE:
            found["few tokens"] = timer.packed(packed, partial(by, SPARSE, x=x))
        found["int8 alone"] = timer.int8(weight, count)
        for way, us in found.items():
            yield {"layer": str(own), "zeros": zeros, "tokens": count, "way": way, "us": us}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=lambda text: text.split(","), default=list(LAYERS))
    parser.add_argument("--replays", type=int, default=7)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    wrong, device = check(), torch.device("cuda")
    torch.cuda.empty_cache()
    stopwatch, rows = Stopwatch(device, arguments.replays), []
    for name in arguments.layers:
        own = layer(name)
        dense = Dense(own, torch.float16, device).time(TOKENS, stopwatch)
        for zeros in ZEROS:
            for row in times(own, zeros, Timer(stopwatch)):
                beside = dense[row["tokens"]]
                rows.append(row | {"dense_us": beside["dense_us"], "fp8_us": beside.get("fp8_us")})
                print(*rows[-1].values(), flush=True)
            torch.cuda.empty_cache()
        if arguments.csv:
            with arguments.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
