# SPDX-License-Identifier: Apache-2.0
"""Is a layer of experts in sparse_24 right on this card, and how fast beside what is served today?

    python benchmarks/gpu/experts.py --minutes 9

First each value type is held against a loop over experts in float64, with uniform and with skewed
(zipf) routing, and the replay of a CUDA graph under other routings against eager calls. Nothing is
timed while a result is wrong. Then whole layers over cold weights, and of ours the products alone:
median times, by turns with torch's grouped product and, where vLLM is installed, its bf16, fp8 and
Marlin int4. Weights of rivals are random.
"""

from __future__ import annotations

import inspect
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from _device import Budget, Stopwatch, _measure, cold_bytes
from _program import DTYPES, measure, numbers, parser, signature
from rich import box
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.units import UNIT_ROWS
from flashsparse_plugin.ops import ops

Row = dict[str, Any]
Calls = dict[str, Callable[[], object]]
TOLERANCE = 8e-3  # of the norm: what lies between the products and each slot are rounded, too
ROUTINGS = 5  # which launches take turns over; odd, as there may be two copies of the weights
DISTINCT = 13  # experts that differ; experts are so far apart that a wrong one shows


class Model(NamedTuple):
    """A mixture's layer."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int


MODELS = {
    "Qwen3-30B-A3B": Model(128, 8, 2048, 768),
    "Mixtral-8x7B": Model(8, 2, 4096, 14336),
    "GLM-4.5-Air": Model(128, 8, 4096, 1408),
    "gpt-oss-120b": Model(128, 4, 2880, 2880),
    "DeepSeek-V3": Model(256, 8, 7168, 2048),
    "toy": Model(6, 2, 96, 48),
}
KINDS: dict[str, tuple[str, int | None]] = {
    "2:4": ("native", None),
    "2:4, fp8_e4m3": ("fp8_e4m3", None),
    "2:4, int8": ("int8", None),
    "2:4, int4 by 128": ("int4", 128),
    "2:4, int4 by 32": ("int4", 32),
    "2:4, fp8_e4m3 by 128": ("fp8_e4m3", 128),
}


def routing(model: Model, tokens: int, name: str, seed: int, device: torch.device) -> Tensor:
    """int32 [tokens, top_k], no expert of a token twice; zipf: p ~ 1 / rank."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, model.experts + 1).double()
    odds = 1 / ranks if name == "zipf" else torch.ones_like(ranks)
    chosen = torch.multinomial(odds.expand(tokens, -1), model.top_k, generator=generator)
    return chosen.int().to(device)


class Experts:
    """A layer's weights of one kind; every DISTINCT-th expert is the same."""

    def __init__(self, model: Model, kind: str, dtype: torch.dtype, device: torch.device):
        self.model, self.kind, self.dtype = model, kind, dtype
        self.values, group = KINDS[kind]
        self.group = group or 0
        distinct = min(DISTINCT, model.experts)
        self._number = torch.arange(model.experts, device=device) % distinct
        rows, hidden = _padded(model.intermediate), _padded(model.hidden)
        w13, w13_scale, both = self._pack((distinct * 2 * rows, model.hidden), device)
        w2, w2_scale, down = self._pack((distinct * hidden, model.intermediate), device)
        both = both.view(distinct, -1, 2, UNIT_ROWS, model.hidden)
        self._gate, self._up = (
            both[:, :, i].flatten(1, 2)[:, : model.intermediate] for i in (0, 1)
        )
        self._down = down.view(distinct, hidden, -1)[:, : model.hidden]
        self.tensors = (w13, w13_scale, w2, w2_scale)
        self.nbytes = sum(each.nbytes for each in self.tensors if each is not None)

    def _pack(self, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Any, Tensor]:
        group = self.group or None
        options = PatternOptions(n=2, m=4, values=self.values, group=group)
        weight = random_weight(shape, 1.0, self.dtype, device)
        weight = PatternOptions(n=2, m=4).keep_largest(weight).contiguous()
        if device.type == "cuda":
            packed = fs.pack(weight, "nm_vector", options.model_dump()).prepare(device)
        else:
            packed = Sparse24().pack(weight, Sparse24().scheme(self.dtype, options.model_dump()))
        distinct = int(self._number.max()) + 1
        units = packed.tensors["units"].unflatten(0, (distinct, -1))[self._number]
        scale = packed.tensors.get("weight_scale")
        scale = None if scale is None else scale.view(distinct, -1)[self._number]
        return units, scale, packed.unpack()

    def multiply(self, x: Tensor, ids: Tensor, weights: Tensor, tensors: Any = None) -> Tensor:
        return ops.sparse_24_experts(
            x, ids, weights, *(tensors or self.tensors), self.model.intermediate, self.dtype,
            self.values, self.group,
        )  # fmt: skip

    def exact(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        y = torch.zeros_like(x, dtype=torch.float64)
        for expert in ids.unique().tolist():
            token, j = (ids == expert).nonzero(as_tuple=True)
            own, number = x[token].double(), int(self._number[expert])
            gate, up = own @ self._gate[number].double().T, own @ self._up[number].double().T
            h = F.silu(gate) * up @ self._down[number].double().T
            y.index_add_(0, token, h * weights[token, j].double()[:, None])
        return y

    def copy(self) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else each.clone() for each in self.tensors)


def _padded(rows: int) -> int:
    return -(-rows // UNIT_ROWS) * UNIT_ROWS


class Measured:
    """Checks, then measures; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong = self.checked = 0
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype, self._kinds = DTYPES[arguments.dtype], arguments.kinds

    def run(self, budget: Budget) -> Iterator[str]:
        for name in self._arguments.models:
            wrong_before = self.wrong
            for kind in self._kinds:
                self._check(Experts(MODELS[name], kind, self._dtype, self._device), name)
            if self.wrong == wrong_before:
                for tokens in self._arguments.tokens:
                    if budget.left < 0:
                        return
                    self._time(name, tokens)
                    yield f"{name}, {tokens} tokens"

    def _inputs(self, model: Model, tokens: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(tokens, model.hidden, device=self._device, dtype=self._dtype)
        return x, torch.rand(tokens, model.top_k, device=self._device) + 0.1

    def _judge(self, good: bool, point: str) -> None:
        self.checked += 1
        if not good:
            self.wrong += 1
            print(f"WRONG {point}")

    def _check(self, experts: Experts, name: str) -> None:
        for tokens in self._arguments.tokens:
            x, weights = self._inputs(experts.model, tokens)
            point = f"{name}, {experts.kind}, {tokens} tokens"
            for skew in ("uniform", "zipf"):
                ids = routing(experts.model, tokens, skew, tokens, self._device)
                right, y = experts.exact(x, ids, weights), experts.multiply(x, ids, weights)
                error = float((y.double() - right).norm() / right.norm())
                self._judge(error <= TOLERANCE, f"{point}, {skew}: off by {error:.2e}")
            alone = experts.multiply(x[-1:], ids[-1:], weights[-1:])
            if self._device.type == "cuda":
                self._judge(torch.equal(alone, y[-1:]), f"{point}: a token alone has other bits")
                self._check_graph(experts, x, weights, point)

    def _check_graph(self, experts: Experts, x: Tensor, weights: Tensor, point: str) -> None:
        ids = routing(experts.model, len(x), "uniform", 0, self._device)
        experts.multiply(x, ids, weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = experts.multiply(x, ids, weights)
        for seed, skew in itertools.product(range(1, 4), ("uniform", "zipf")):
            ids.copy_(routing(experts.model, len(x), skew, seed, self._device))
            graph.replay()
            eager = experts.multiply(x, ids, weights)
            self._judge(torch.equal(captured, eager), f"{point}: replay under {skew} {seed}")

    def _time(self, name: str, tokens: int) -> None:
        model = MODELS[name]
        x, weights = self._inputs(model, tokens)
        for skew in ("uniform", "zipf"):
            routings = [
                routing(model, tokens, skew, seed, self._device) for seed in range(ROUTINGS)
            ]
            ours = {kind: self._call(model, kind, x, weights, routings) for kind in self._kinds}
            calls = ours | rivals(model, x, weights, routings, cold_bytes(self._device))
            counts = {kind: (call, 2 * ROUTINGS) for kind, call in calls.items()}
            for kind, time in self._stopwatch.in_turns(counts).items():
                row = {"model": name, "tokens": tokens, "routing": skew, "kind": kind}
                row["layer_us"] = round(time.microseconds, 2)
                row["products_us"] = self._products(ours[kind]) if kind in ours else ""
                self.rows.append(row)

    def _call(
        self, model: Model, kind: str, x: Tensor, weights: Tensor, routings: list[Tensor]
    ) -> Callable[[], Tensor]:
        experts = Experts(model, kind, self._dtype, self._device)
        copies = _measure.Rotation(experts.copy, experts.nbytes, cold_bytes(self._device))
        turn = itertools.cycle(routings)
        return lambda: experts.multiply(x, next(turn), weights, copies())

    def _products(self, call: Callable[[], object]) -> float | str:
        """Microseconds of both products in a layer, as the profiler has them."""
        if self._device.type != "cuda":
            return ""
        sums = []
        for _ in range(2 * ROUTINGS):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                call()
                torch.cuda.synchronize()
            own = [each for each in seen.events() if "experts_kernel" in each.name]
            sums.append(sum(each.device_time for each in own))
        return round(statistics.median(sums), 2)


def rivals(model: Model, x: Tensor, weights: Tensor, routings: list[Tensor], cold: int) -> Calls:
    """Whole layers of other libraries over cold weights, by name."""
    found: Calls = {}
    for make in (_vllm_bf16, _vllm_fp8, _vllm_marlin, _torch_grouped):
        try:
            call = make(model, x, weights, itertools.cycle(routings), cold)
            call()
            found[make.__name__.strip("_").replace("_", " ")] = call
        except Exception as error:  # another release, or a size that it refuses
            print(f"{make.__name__.strip('_')} is left out: {type(error).__name__}: {error}"[:200])
    return found


def _dense(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    made = {"device": x.device, "dtype": x.dtype}
    w13 = torch.randn(model.experts, 2 * model.intermediate, model.hidden, **made)
    w2 = torch.randn(model.experts, model.hidden, model.intermediate, **made)
    return w13.div_(model.hidden**0.5), w2.div_(model.intermediate**0.5)


def _rotation(tensors: tuple[Tensor, ...], cold: int) -> _measure.Rotation:
    nbytes = sum(each.nbytes for each in tensors)
    return _measure.Rotation(lambda: tuple(each.clone() for each in tensors), nbytes, cold)


def _call(function: Callable, **given: Any) -> Any:
    """Calls with the keywords that this release of a library knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in known})


def _vllm_bf16(model, x, weights, turn, cold):
    from vllm.model_executor.layers.fused_moe import fused_experts

    copies = _rotation(_dense(model, x), cold)

    def call():
        w13, w2 = copies()
        return _call(fused_experts, hidden_states=x, w1=w13, w2=w2, topk_weights=weights,
                     topk_ids=next(turn), inplace=False)  # fmt: skip

    return call


def _vllm_fp8(model, x, weights, turn, cold):
    from vllm.model_executor.layers.fused_moe import fused_experts
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    w13, w2 = (each.to(torch.float8_e4m3fn) for each in _dense(model, x))
    scales = [
        torch.rand(len(w), w.shape[1] // 128, w.shape[2] // 128, device=x.device) for w in (w13, w2)
    ]
    config = _call(
        fp8_w8a8_moe_quant_config, w1_scale=scales[0], w2_scale=scales[1], block_shape=[128, 128]
    )
    copies = _rotation((w13, w2), cold)

    def call():
        own = copies()
        return _call(fused_experts, hidden_states=x, w1=own[0], w2=own[1], topk_weights=weights,
                     topk_ids=next(turn), inplace=False, quant_config=config)  # fmt: skip

    return call


def _vllm_marlin(model, x, weights, turn, cold):
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    words, scales = [], []
    for rows, columns in (
        (2 * model.intermediate, model.hidden),
        (model.hidden, model.intermediate),
    ):
        shape = model.experts, columns // 16, rows * 2
        words.append(torch.randint(-(2**31), 2**31, shape, device=x.device).int())
        scales.append(torch.rand(model.experts, columns // 128, rows, device=x.device).to(x.dtype))
    copies = _rotation((words[0], words[1]), cold)

    def call():
        own, ids = copies(), next(turn)
        return _call(
            fused_marlin_moe, hidden_states=x, w1=own[0], w2=own[1], bias1=None, bias2=None,
            w1_scale=scales[0], w2_scale=scales[1], gating_output=None, topk_weights=weights,
            topk_ids=ids, quant_type_id=scalar_types.uint4b8.id, global_num_experts=model.experts,
        )  # fmt: skip

    return call


def _torch_grouped(model, x, weights, turn, cold):
    copies = _rotation(_dense(model, x), cold)

    def call():
        (w13, w2), ids = copies(), next(turn)
        order = ids.flatten().argsort(stable=True)
        counts = torch.zeros(model.experts, dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, ids.flatten().long(), torch.ones_like(ids.flatten()))
        ends = counts.cumsum(0, dtype=torch.int32)
        token = order // model.top_k
        gate, up = F.grouped_mm(x[token], w13.transpose(1, 2), offs=ends).chunk(2, -1)
        h = F.grouped_mm(F.silu(gate) * up, w2.transpose(1, 2), offs=ends)
        h = h * weights.flatten()[order, None].to(h.dtype)
        return torch.zeros_like(x).index_add_(0, token, h)

    return call


def show(rows: list[Row], about: Row) -> None:
    """Microseconds of a layer."""
    points = list(dict.fromkeys((row["model"], row["routing"]) for row in rows))
    counts = sorted({row["tokens"] for row in rows})
    console = _measure.console(width=100)
    for model, skew in points:
        table = Table(title=f"{model}, {skew}: us a layer (products)", box=box.SIMPLE_HEAD)
        table.add_column("kind", no_wrap=True)
        for count in counts:
            table.add_column(f"{count} tokens", justify="right", no_wrap=True)
        for kind in dict.fromkeys(row["kind"] for row in rows):
            own = {
                row["tokens"]: row
                for row in rows
                if (row["model"], row["routing"], row["kind"]) == (model, skew, kind)
            }
            cells = []
            for count in counts:
                row = own.get(count, {"layer_us": "", "products_us": ""})
                more = f" ({row['products_us']})" if row["products_us"] != "" else ""
                cells.append(f"{row['layer_us']}{more}")
            table.add_row(kind, *cells)
        console.print(table)
    console.print(signature(about))


def main() -> int:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    options.add_argument(
        "--models", type=lambda text: text.split(","), default=["Qwen3-30B-A3B", "Mixtral-8x7B"]
    )
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=list(KINDS)[:4])
    options.add_argument("--tokens", type=numbers, default=[1, 8, 64, 256])
    arguments = options.parse_args()
    measured = measure(Measured, arguments, "experts.csv", show)
    print(f"{measured.checked} results checked, {measured.wrong} wrong")
    return int(measured.wrong > 0 or not measured.checked)


if __name__ == "__main__":
    sys.exit(main())
