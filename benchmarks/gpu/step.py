# SPDX-License-Identifier: Apache-2.0
"""What do kernels between products gain that signal launch_dependents at their first instruction?

    python benchmarks/gpu/step.py --minutes 9

A decode step of 32 layers of Llama-3-8B's shapes without its attention: norm, qkv, rotary
embedding, o, norm, gate and up, SiLU, down; weights cold by their size, one CUDA graph, medians of
replays in alternation. The kernels between products are torch's, compiled by inductor: as they are
(inductor_ms), and signaling at their end (at_end_ms, triton.enable_pdl); or ours (ours_ms); or
there are none (none_ms), which is the least that fusing them into products could reach. Dense
weights in bfloat16, and in fp8 with quantized activations, have inductor's.

Before that each op between products is held against float64, and each chain against itself: its
graph must give the bits of a run that waits for the device after every kernel, in every replay.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _device import Budget, Stopwatch, _formats, _measure
from _layers import Layer, layer
from _program import DTYPES, measure, numbers, parser, signature
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin import selftest
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.evaluation.dense_products import FP8, DenseProduct, dense_products
from flashsparse_plugin.evaluation.kinds import CHOICES, KINDS, Kind
from flashsparse_plugin.ops import ops

Row = dict[str, Any]
Product = Callable[[Tensor], Tensor]
HEAD_DIM, EPSILON = 128, 1e-5
SHAPES = ("6144x4096", "4096x4096", "28672x4096", "4096x14336")  # qkv, o, gate and up, down
OPS = ("rms_norm", "add_rms_norm", "gate_mul", "rope", "rope_cache")
KINDS_HERE = ["2:4", "2:4, fp8_e4m3", "2:4 fp8 W8A8", "2:4, int4 by 128", "8:32, L=32"]
BFLOAT16 = "dense"
WAYS = ("inductor", "at_end", "ours", "none")
REPLAYS = 20  # whose bits are compared


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x.float() + residual.float()
    y = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPSILON)
    return y.to(x.dtype) * weight, total.to(x.dtype)


def _rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = cos_sin[positions].unsqueeze(1).chunk(2, -1)

    def rotated(heads: Tensor) -> Tensor:
        x, y = heads.chunk(2, -1)
        return torch.cat((x * cosine - y * sine, y * cosine + x * sine), -1)

    return rotated(query), rotated(key)


def _silu_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _dense(weight: Tensor) -> Product:
    return lambda x: torch.nn.functional.linear(x, weight)


def _rounded(rival: DenseProduct) -> Product:
    tensors = rival.copy()
    return lambda x: rival.multiply(rival.quantize(x), tensors)


class Between:
    """The kernels between products, in one way of `WAYS`."""

    def __init__(self, way: str, device: torch.device):
        self.signals = way == "at_end"
        functions = _add_rms_norm, _rope, _silu_mul
        if way != "ours" and device.type == "cuda":
            # Past the limit torch would run them eagerly, and the time be that of something else.
            torch._dynamo.config.recompile_limit = 64
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            # Named even where false: what was compiled with other options is not taken for it.
            options = {"triton.enable_pdl": self.signals}
            functions = tuple(
                torch.compile(each, dynamic=False, options=options) for each in functions
            )
        self.add_rms_norm, self.rope, self.silu_mul = functions
        if way == "ours":
            self.add_rms_norm = lambda x, residual, w: ops.add_rms_norm(x, residual, w, EPSILON)
            self.rope = lambda q, k, positions, cos_sin: ops.rope(q, k, positions, cos_sin, True)
            self.silu_mul = lambda x: ops.gate_mul(x, "silu")

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Launches products as they may be launched after these kernels."""
        if not torch.cuda.is_available():
            yield
            return
        before = ops.begin_early(self.signals)
        try:
            yield
        finally:
            ops.begin_early(before)


class Nothing(Between):
    """No kernels between products: each reads x of the right shape, whatever stands in it."""

    def __init__(self, x: Tensor, heads: int, inner: int):
        super().__init__("ours", x.device)
        query = x.new_zeros(len(x), heads, HEAD_DIM)
        gated = x.new_zeros(len(x), inner)
        self.add_rms_norm = lambda x, residual, w: (x, residual)
        self.rope = lambda q, k, positions, cos_sin: (query, k)
        self.silu_mul = lambda x: gated


class Chain:
    """A step; `layers` has the four products of each layer."""

    def __init__(
        self, layers: list[list[Product]], between: Between, tokens: int, x: Tensor, sizes: Any
    ):
        self.between, self._layers = between, layers
        heads, kv_heads = sizes
        self._split = heads * HEAD_DIM, kv_heads * HEAD_DIM, kv_heads * HEAD_DIM
        generator = torch.Generator(x.device).manual_seed(3)
        self._x = x
        self._weight = torch.ones(x.shape[1], dtype=x.dtype, device=x.device)
        angles = torch.rand(64, HEAD_DIM // 2, device=x.device, generator=generator) * 6
        self._cos_sin = torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype)
        self._positions = torch.arange(tokens, device=x.device) % 64

    def __call__(self, after_each: Callable[[], object] = lambda: None) -> Tensor:
        between, x, residual = self.between, self._x, torch.zeros_like(self._x)

        def done(value: Any) -> Any:
            after_each()
            return value

        for qkv, o, gate_up, down in self._layers:
            h, residual = done(between.add_rms_norm(x, residual, self._weight))
            query, key, _ = done(qkv(h)).split(self._split, -1)
            heads = (t.unflatten(-1, (-1, HEAD_DIM)) for t in (query, key))
            query, _ = done(between.rope(*heads, self._positions, self._cos_sin))
            h, residual = done(
                between.add_rms_norm(done(o(query.flatten(1))), residual, self._weight)
            )
            x = done(down(done(between.silu_mul(done(gate_up(h))))))
        return x


def _kind_of(name: str) -> Kind | None:
    return KINDS.get(CHOICES.get(name, name))


class Step:
    """Measures kind by kind; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong = 0
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype = DTYPES[arguments.dtype]
        shapes = [each.shape for each in arguments.layers]
        self._hidden = shapes[0][1]
        self._inner = shapes[3][1]
        heads = shapes[1][1] // HEAD_DIM
        self._heads = heads, (shapes[0][0] // HEAD_DIM - heads) // 2

    def check(self) -> None:
        """Holds the ops between products against float64."""
        for op in OPS:
            found = selftest.check(op, self._device.type)
            if found.status != selftest.PASS:
                self.wrong += 1
                print(f"WRONG {op}: {found.detail}")

    def run(self, budget: Budget) -> Iterator[str]:
        self.check()
        for name in (BFLOAT16, FP8, *self._arguments.kinds):
            layers = self._layers(name)
            if not layers:
                continue
            for tokens in self._arguments.tokens:
                if budget.left < 0:
                    return
                self._measure(name, layers, tokens)
            yield name

    def _layers(self, name: str) -> list[list[Product]]:
        made = [self._products(name, each) for each in self._arguments.layers]
        if not all(made):
            return []
        return [[make() for make in made if make] for _ in range(self._arguments.depth)]

    def _products(self, name: str, each: Layer) -> Callable[[], Product] | None:
        """Makes products of one shape over weights that are elsewhere in memory each time."""
        if kind := _kind_of(name):
            packed = kind.pack(each.shape, self._dtype, self._device)
            own = packed.prepare(self._device)
            return lambda: fs.SparseLinear.from_packed(_formats.copy_of(own))
        weight = random_weight(each.shape, 1.0, self._dtype, self._device)
        if name == BFLOAT16:
            return lambda: _dense(weight.clone())
        for rival in dense_products(weight):
            if isinstance(rival, DenseProduct) and rival.name == FP8:
                return partial(_rounded, rival)
        print(f"{name} is left out: not on this device")
        return None

    def _measure(self, name: str, layers: list[list[Product]], tokens: int) -> None:
        generator = torch.Generator(self._device).manual_seed(tokens)
        size = tokens, self._hidden
        x = torch.randn(size, device=self._device, generator=generator).to(self._dtype)
        ways = WAYS if _kind_of(name) else WAYS[:1]
        row: Row = {"kind": name, "tokens": tokens, "layers": len(layers)}
        calls: dict[str, tuple[Callable[[], object], int]] = {}
        with torch.inference_mode():
            for way in ways:
                between = (
                    Nothing(x, self._heads[0], self._inner)
                    if way == "none"
                    else Between(way, self._device)
                )
                chain = Chain(layers, between, tokens, x, self._heads)
                with chain.between.used():
                    wrong = self._replays_wrong(chain)
                if wrong:
                    self.wrong += 1
                    print(f"WRONG {name}, {tokens} tokens, {way}: {wrong} values differ")
                calls[way] = (self._in(chain), 1)
            for way, time in self._stopwatch.in_turns(calls).items():
                row[f"{way}_ms"] = round(time.microseconds / 1e3, 4)
        self.rows.append(row)

    def _in(self, chain: Chain) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with chain.between.used():
                return chain()

        return call

    def _replays_wrong(self, chain: Chain) -> int:
        """Values that differ from those of a run in which no kernel is beside another."""
        if self._device.type != "cuda":
            return int((chain() != chain()).sum())
        right = chain(torch.cuda.synchronize).clone()
        if not right.isfinite().all():
            return right.numel()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = chain()
        wrong = 0
        for _ in range(REPLAYS):
            graph.replay()
            torch.cuda.synchronize()
            wrong += int((found != right).sum())
        return wrong


def show(rows: list[Row], about: Row) -> None:
    table = Table(title="Milliseconds of a step without attention", box=box.SIMPLE_HEAD)
    counts = sorted({row["tokens"] for row in rows})
    table.add_column("kind", no_wrap=True)
    table.add_column("between products", no_wrap=True)
    for count in counts:
        table.add_column(f"{count} tokens", justify="right", no_wrap=True)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for way in WAYS:
            own = {row["tokens"]: row.get(f"{way}_ms") for row in rows if row["kind"] == kind}
            if any(own.values()):
                cells = (f"{own[count]:.3f}" if own.get(count) else "" for count in counts)
                table.add_row(kind, way, *cells)
    console = _measure.console(width=100)
    console.print(table)
    saved = [1 - row["ours_ms"] / row["inductor_ms"] for row in rows if row.get("ours_ms")]
    if saved:
        console.print(f"ours takes {statistics.mean(saved):.1%} less than inductor, on average")
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    options.add_argument(
        "--layers",
        type=lambda text: [layer(each) for each in text.split(",")],
        default=[layer(each) for each in SHAPES],
        help="shapes of qkv, o, gate and up, down",
    )
    options.add_argument("--depth", type=int, default=32, help="layers of the model")
    options.add_argument("--tokens", type=numbers, default=[1, 16, 64])
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=KINDS_HERE)
    arguments = options.parse_args()
    measured = measure(Step, arguments, "step.csv", show)
    print(f"{measured.wrong} results are wrong")
    return int(measured.wrong > 0 or not measured.rows)


if __name__ == "__main__":
    sys.exit(main())
