# SPDX-License-Identifier: Apache-2.0
"""Is decode attention right on this GPU, and how fast is it against FlashAttention?

    python benchmarks/gpu/attention.py                checks and times, in 6 minutes at most
    python benchmarks/gpu/attention.py --check        every way to call it, against float64
    python benchmarks/gpu/attention.py --speed        1 to 64 sequences of 1k to 32k positions
    python benchmarks/gpu/attention.py --cache fp8    the same over an fp8 cache, checks first
    python benchmarks/gpu/attention.py --sinks        the same with sinks, as gpt-oss has them
    python benchmarks/gpu/attention.py --device cpu   a toy run that shows that this program works

The op, without phi and with one that fits, is compared with torch's scaled_dot_product_attention
and, over the same pages as our paged op, with FlashInfer and with vLLM's FlashAttention 3 and its
Triton kernel, where these are installed (--rivals picks some). All read cold keys and values, from
CUDA graphs. Over an fp8 cache FlashAttention 3 gets its query in fp8, too, as in vLLM. Results are
saved after each point; when the --minutes are over, the rest is left out with a message. The card's
clocks are never set.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _attention_rivals import flash_attention, flashinfer_attention, triton_attention
from _check import Checker
from _device import Budget, Stopwatch, _measure, cold_bytes
from _program import (
    DTYPES,
    Row,
    conditions,
    device_of,
    parser,
    reported,
    run_parts,
    save_each,
    signature,
)
from rich import box
from rich.table import Table
from torch import Tensor

from flashsparse_plugin.ops import attention_reference, ops

CHECK_SECONDS = 120  # if both parts are requested
PAGE = 16
RIVALS = ("fa3", "flashinfer", "triton")  # over the same pages
SAME = 0.02  # of the norm of a result, that rounding to bfloat16 may move
SAME_FP8 = 0.08  # that rounding queries and terms to fp8 may move
FP8, NAN_CODE = torch.float8_e4m3fn, 0x7F


@dataclass(frozen=True)
class Shape:
    """A step of one token for each of `sequences` sequences of `positions` each."""

    sequences: int
    kv_heads: int
    group: int
    head_dim: int
    positions: int

    @property
    def heads(self) -> str:
        return f"{self.kv_heads * self.group}/{self.kv_heads} x {self.head_dim}"

    @property
    def elements(self) -> int:
        """Of keys and values."""
        return 2 * self.sequences * self.kv_heads * self.positions * self.head_dim

    def __str__(self) -> str:
        return f"{self.sequences} of {self.positions}, heads {self.heads}"


HEADS = {  # heads of the cache, queries of each, and their width
    "Llama-3-8B": (8, 4, 128),
    "Llama-3-70B": (8, 8, 128),
    "Llama-2-7B": (32, 1, 128),
    "Llama-2-13B": (40, 1, 128),
    "ChatGLM2-6B": (2, 16, 128),
}
SPEED = [
    Shape(sequences, *heads, positions)
    for heads, sequences, positions in itertools.product(
        HEADS.values(), (1, 4, 16, 64), (1024, 8192, 32768)
    )
]


# ---- is it right? -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    shape: Shape
    dtype: torch.dtype
    paged: bool = False
    nhd: bool = False
    masked: bool = False
    window: int = 0
    softcap: float = 0.0
    spread: float = 1.0  # approximate standard deviation of scores
    codes: bool = False  # an fp8 cache
    sinks: bool = False

    def __str__(self) -> str:
        told = [str(self.shape), str(self.dtype).removeprefix("torch.")]
        told += ["pages" + " NHD" * self.nhd] * self.paged + ["masked"] * self.masked
        told += ["fp8"] * self.codes + ["sinks"] * self.sinks
        told += [f"{name} {getattr(self, name):g}" for name in ("window", "softcap", "spread")]
        return ", ".join(told)


def cases(small: bool, codes: bool = False, sinks: bool = False) -> Iterator[Case]:
    """Every head dim, group and layout, the most informative first; `small` has two groups.

    With `codes` or `sinks` all have these, else some do.
    """
    for number, case in enumerate(_cases(small)):
        yield replace(case, codes=codes or number % 5 == 1, sinks=sinks or number % 4 == 2)


def _cases(small: bool) -> Iterator[Case]:
    dims, groups = (64, 80, 96, 128, 256), (1, 8) if small else (1, 4, 8, 12, 16)
    lengths = (40, 300) if small else (17, 300, 3000, 20000)
    for positions, head_dim, group in itertools.product(lengths, dims, groups):
        if positions > 5000 and group != 4:
            continue
        number = groups.index(group) + dims.index(head_dim)
        shape = Shape(3 if positions < 5000 else 1, 2, group, head_dim, positions)
        for paged, dtype in itertools.product((False, True), DTYPES.values()):
            yield Case(
                shape,
                dtype,
                paged,
                nhd=paged and number % 2 == 0,
                masked=not paged and number % 2 == 0,
                window=(0, positions // 3)[number % 3 == 1],
                softcap=(0.0, 3.0)[number % 3 == 2],
            )
    for dtype, spread in itertools.product(DTYPES.values(), (30.0, 300.0)):
        yield Case(Shape(2, 2, 4, 128, lengths[-1]), dtype, spread=spread)
    if not small:
        for dtype in DTYPES.values():
            yield Case(Shape(1, 1, 8, 128, 131072), dtype, paged=True)
            yield Case(Shape(300, 8, 4, 64, 100), dtype)


class AttentionChecker(Checker):
    """Compares the ops with float64."""

    def _check(self, case: Case, number: int) -> None:
        shape, dtype = case.shape, case.dtype
        heads, scale = shape.kv_heads * shape.group, shape.head_dim**-0.5
        cache = (shape.sequences, shape.kv_heads, shape.positions, shape.head_dim)
        query = (self._random((shape.sequences, heads, shape.head_dim)) * case.spread).to(dtype)
        key, value = (self._random(cache, dtype) for _ in range(2))
        lengths = torch.randint(
            0, shape.positions + 1, (shape.sequences,), generator=self._generator,
            device=self._device, dtype=torch.int32,
        )  # fmt: skip
        lengths[-1] = shape.positions
        mask = None
        if case.masked:
            mask = self._random((shape.sequences, shape.positions)) < 1
            mask[0, : shape.positions // 2] = False
        options: dict[str, Any] = {"softcap": case.softcap, "window": case.window, "scale": scale}
        if case.sinks:
            options["sinks"] = self._random((heads,)) * 4
        if case.codes:
            options |= {
                name: self._random((shape.kv_heads,)).abs() + 0.1
                for name in ("key_scale", "value_scale")
            }
        unseen = ~attention_reference.attended(key, lengths, mask, case.window)[:, None, :, None]
        key, value = key.masked_fill(unseen, torch.nan), value.masked_fill(unseen, torch.nan)
        if case.codes:
            key, value = key.to(FP8), value.to(FP8)
        inputs = (query, key, value, lengths, mask)
        exact = attention_reference.decode(*inputs, **options)
        call = self._call(case, *inputs, **options)
        for name, phi in (("no phi", None), ("phi", 0.0), ("useless phi", 80.0 + 10 * case.spread)):
            phi = None if phi is None else torch.full((heads,), phi, device=self._device)
            out, recomputed = call(query, phi=phi)
            low = 2.0**-4 if phi is not None and dtype == torch.float16 else 1.0
            bound = attention_reference.error_bound(
                *inputs, **options, rounded_terms=self._device.type == "cuda", low=low
            )
            worst = float(((out.double() - exact).abs() / bound).nan_to_num(torch.inf).max())
            self.tally.worst = max(self.tally.worst, worst)
            self.tally.add("exact", worst <= 1.01, f"{case}, {name}: {worst:.3g} of the bound")
            nothing = (exact == 0).all(-1)
            told = bool(((recomputed > 0) == ~nothing).all()) if name == "useless phi" else True
            told = told and (phi is not None or not recomputed.any())
            self.tally.add("recomputed", told, f"{case}, {name}")
            again, as_often = call(query, phi=phi)
            same = torch.equal(again, out) and torch.equal(as_often, recomputed)
            self.tally.add("the same again", same, f"{case}, {name}")
            if self._graphs:
                op = partial(_output, call, phi)
                self._check_graph(op, query, out, f"{case}, {name}")

    def _call(
        self, case: Case, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor,
        mask: Tensor | None, **options: Any,
    ) -> Callable[..., tuple[Tensor, Tensor]]:  # fmt: skip
        if case.paged:
            cache = paged(key, value, case.nhd)
            return lambda q, phi: ops.unified_max_paged_decode(
                q, *cache, lengths, **options, phi=phi
            )
        return lambda q, phi: ops.unified_max_decode(
            q, key, value, lengths, mask, **options, phi=phi
        )


def _output(
    call: Callable[..., tuple[Tensor, Tensor]], phi: Tensor | None, query: Tensor
) -> Tensor:
    return call(query, phi=phi)[0]


def paged(key: Tensor, value: Tensor, nhd: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Key and value as views of a cache in vLLM's layout, in shuffled pages, and the table."""
    sequences, kv_heads, positions, head_dim = key.shape
    count = -(-positions // PAGE)
    dtype = key.dtype
    if dtype == FP8:  # torch moves and fills bytes, but not these
        key, value = key.view(torch.uint8), value.view(torch.uint8)
    nothing = NAN_CODE if dtype == FP8 else torch.nan
    both = F.pad(torch.cat([key, value], -1), (0, 0, 0, count * PAGE - positions), value=nothing)
    pages = both.unflatten(2, (count, PAGE)).transpose(1, 2).flatten(0, 1)
    if nhd:
        pages = pages.transpose(1, 2).contiguous().transpose(1, 2)
    order = torch.randperm(len(pages), device=key.device)
    cache = torch.empty_like(pages)
    cache[order] = pages
    table = order.view(sequences, count).int()
    return *cache.view(dtype).transpose(1, 2).split(head_dim, -1), table


def check(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    checks = AttentionChecker(device, device, graphs=True)
    todo = cases(device.type == "cpu", arguments.cache == "fp8", arguments.sinks)
    return reported(lambda: checks.run(todo, budget), arguments.out / "attention_check.txt")


# ---- how fast is it? ----------------------------------------------------------------------------


class Point:
    """Times one shape, over so many copies of its keys and values that they are cold."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        stopwatch: Stopwatch,
        rivals: Sequence[str],
        codes: bool = False,
        sinks: bool = False,
    ):
        self._shape, self._device, self._stopwatch = shape, device, stopwatch
        self._rivals, self._codes = rivals, codes
        generator = torch.Generator(device).manual_seed(0)
        self._random = partial(torch.randn, generator=generator, device=device, dtype=dtype)
        heads, self._scale = shape.kv_heads * shape.group, shape.head_dim**-0.5
        self._query = self._random(shape.sequences, heads, shape.head_dim)
        self._lengths = torch.full((shape.sequences,), shape.positions, device=device).int()
        self._phi = torch.zeros(heads, device=device)
        # In the dtype of the model, as in gpt-oss.
        self._sinks = self._random(heads) if sinks else None
        self._options: dict[str, Any] = {"scale": self._scale, "sinks": self._sinks}
        if codes:
            ones = torch.ones(shape.kv_heads, device=device)
            self._options |= {"key_scale": ones, "value_scale": ones}

    @property
    def _bytes(self) -> int:
        return self._shape.elements * (1 if self._codes else 2)

    def time(self) -> Row:
        shape = self._shape
        row = {"heads": shape.heads, "sequences": shape.sequences, "positions": shape.positions}
        return row | self._contiguous() | self._paged()

    def _contiguous(self) -> Row:
        shape, query = self._shape, self._query
        size = (shape.sequences, shape.kv_heads, shape.positions, shape.head_dim)
        caches = self._rotation(lambda: (self._stored(*size), self._stored(*size)))
        online = partial(ops.unified_max_decode, lengths=self._lengths, **self._options)
        unified = partial(online, phi=self._phi)
        sdpa = partial(F.scaled_dot_product_attention, enable_gqa=True)
        row: Row = {
            "online_us": self._time(lambda: online(query, *caches()), caches),
            "phi_us": self._time(lambda: unified(query, *caches()), caches),
        }
        if not self._codes and self._sinks is None:
            row["sdpa_us"] = self._time(lambda: sdpa(query[:, :, None], *caches()), caches)
        return row | {"recomputed": int(unified(query, *caches())[1].sum())}

    def _stored(self, *size: int) -> Tensor:
        return self._random(*size).to(FP8) if self._codes else self._random(*size)

    def _paged(self) -> Row:
        """Times the op and, with vLLM, FlashAttention and Triton over a cache in vLLM's layout."""
        shape, query, scale = self._shape, self._query, self._scale
        codes, sinks = self._codes, self._sinks
        count = -(-shape.positions // PAGE)
        size = (shape.sequences * count, PAGE, shape.kv_heads, 2 * shape.head_dim)
        caches = self._rotation(lambda: self._stored(*size).split(shape.head_dim, -1))
        order = torch.randperm(shape.sequences * count, device=self._device)
        table = order.view(shape.sequences, count).int()
        online = partial(
            ops.unified_max_paged_decode,
            block_table=table,
            lengths=self._lengths,
            **self._options,
        )
        row = {"paged_us": self._time(lambda: online(query, *caches()), caches)}
        fa3 = flash_attention() if "fa3" in self._rivals else None
        if fa3 is not None:
            fa3 = partial(
                fa3,
                max_seqlen_q=1,
                cu_seqlens_q=torch.arange(shape.sequences + 1, device=self._device).int(),
                max_seqlen_k=shape.positions,
                seqused_k=self._lengths,
                softmax_scale=scale,
                causal=True,
                block_table=table,
                out=torch.empty_like(query),
                s_aux=sinks,
            )
            given = query.to(FP8) if codes else query
            if codes:
                ones = torch.ones(shape.sequences, shape.kv_heads, device=self._device)
                fa3 = partial(fa3, **{f"{name}_descale": ones for name in "qkv"})
            both = caches()  # copies differ
            most = SAME_FP8 if codes else SAME
            _require_same(fa3(given, *both), online(query, *both)[0], most)
            row["fa3_us"] = self._time(lambda: fa3(given, *caches()), caches)
        triton = None
        if "triton" in self._rivals and not codes and sinks is None:
            heads = query.shape[1]
            triton = triton_attention(
                shape.sequences, heads, shape.kv_heads, shape.head_dim, self._device
            )
        if triton is not None:
            triton = partial(
                triton,
                seqused_k=self._lengths,
                max_seqlen_k=shape.positions,
                softmax_scale=scale,
                block_table=table,
                out=torch.empty_like(query),
            )
            row["triton_us"] = self._time(lambda: triton(query, *caches()), caches)
        if "flashinfer" in self._rivals and sinks is None:  # its decode has none
            row |= self._flashinfer(table, caches, lambda both: online(query, *both)[0])
        return row

    def _flashinfer(
        self, table: Tensor, caches: _measure.Rotation, ours: Callable[[Any], Tensor]
    ) -> Row:
        """Its faster way; nothing without it, and why where it is there and does not run."""
        shape, query, found = self._shape, self._query, []
        sizes = (query.shape[1], shape.kv_heads, shape.head_dim)
        out, both = torch.empty_like(query), caches()
        try:
            stored = FP8 if self._codes else query.dtype
            for run in flashinfer_attention(*sizes, table, PAGE, query.dtype, stored, self._scale):
                call = partial(run, query, out=out)
                _require_same(call(both), ours(both))
                found.append(self._time(lambda call=call: call(caches()), caches))
        except Exception as error:  # it loads what it calls, or compiles it, and may fail anyhow
            if "CUDA error" in str(error):
                raise
            print(f"{shape}: FlashInfer does not run: {str(error)[:200]}", flush=True)
        return {"flashinfer_us": min(found)} if found else {}

    def _rotation(self, make: Callable[[], Any]) -> _measure.Rotation:
        return _measure.Rotation(make, self._bytes, cold_bytes(self._device))

    def _time(self, call: Callable[[], object], caches: _measure.Rotation) -> float:
        return round(self._stopwatch(call, len(caches)).microseconds, 2)


def _require_same(found: Tensor, expected: Tensor, most: float = SAME) -> None:
    """Raises ValueError where a rival computes something else, so that its time means nothing."""
    differ = float((found - expected).float().norm() / expected.float().norm())
    if not differ <= most:
        raise ValueError(f"its result differs from ours by {differ:.1%} of the norm")


def _fits(shape: Shape, device: torch.device) -> bool:
    """Whether there is room for two copies of keys and values, which take turns."""
    if device.type != "cuda":
        return True
    return 4.2 * shape.elements < torch.cuda.get_device_properties(device).total_memory


def speed(arguments: argparse.Namespace, device: torch.device, budget: Budget) -> bool:
    stopwatch = Stopwatch(device, arguments.replays)
    about, bandwidth = conditions(arguments, device, stopwatch)
    shapes = [shape for shape in SPEED if _fits(shape, device)]
    rivals = arguments.rivals
    if device.type != "cuda":
        shapes, rivals = [Shape(2, 2, 2, 64, 100)], ()
    rows: list[Row] = []

    def measured() -> Iterator[Shape]:
        for shape in shapes:
            if budget.left < 0:
                return
            codes = arguments.cache == "fp8"
            dtype = DTYPES[arguments.dtype]
            point = Point(shape, dtype, device, stopwatch, rivals, codes, arguments.sinks)
            bound = shape.elements * (1 if codes else 2) / bandwidth
            rows.append(point.time() | {"bound_us": round(bound * 1e6, 2)})
            yield shape

    about |= {"cache": arguments.cache} if arguments.cache else {}
    about |= {"sinks": True} if arguments.sinks else {}
    name = "attention" + "-fp8" * bool(arguments.cache) + "-sinks" * arguments.sinks
    save_each(measured(), rows, about, arguments.out / f"{name}.csv", budget, show)
    if len(rows) < len(shapes):
        print(f"speed: time was over after {len(rows)} of {len(shapes)} points")
    return bool(rows)


def show(rows: list[Row], about: dict[str, Any]) -> None:
    """Prints microseconds, the fastest in green, and the op's share of the bound."""
    names = [
        name
        for name in ("online", "phi", "paged", "sdpa", "fa3", "flashinfer", "triton")
        if any(f"{name}_us" in row for row in rows)
    ]
    table = Table(title="µs of one token a sequence", box=box.SIMPLE_HEAD)
    for column in ("heads", "sequences", "positions", *names, "bound", "of bound"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = [row.get(f"{name}_us", math.inf) for name in names]
        shown = [f"{us:.1f}" if math.isfinite(us) else "" for us in times]
        best = shown[times.index(min(times))]
        cells = [f"[green]{text}[/]" if text == best else text for text in shown]
        first = [row["heads"], f"{row['sequences']}", f"{row['positions']}"]
        share = row["bound_us"] / min(row["online_us"], row["phi_us"])
        table.add_row(*first, *cells, f"{row['bound_us']:.1f}", f"{share:.0%}")
    console = _measure.console(width=120)
    console.print(table)
    console.print(signature(about))


def main() -> None:
    options = parser(__doc__, minutes=6.0, dtype="bfloat16")
    for name in ("check", "speed"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--cache", choices=("fp8",), help="e4m3 codes with a scale a kv head")
    options.add_argument("--sinks", action="store_true", help="a sink for each head")
    options.add_argument("--rivals", nargs="*", choices=RIVALS, default=RIVALS)
    arguments = options.parse_args()
    device = device_of(arguments)
    both = arguments.check == arguments.speed
    budget = Budget(60 * arguments.minutes)
    parts = []
    if both or arguments.check:
        parts.append(lambda: check(arguments, device, budget.at_most(CHECK_SECONDS)))
    if both or arguments.speed:
        parts.append(lambda: speed(arguments, device, budget))
    raise SystemExit(0 if run_parts(parts) else 1)


if __name__ == "__main__":
    main()
