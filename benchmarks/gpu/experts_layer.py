# SPDX-License-Identifier: Apache-2.0
"""Are packed experts right on this card as integrations run them, and how fast is a layer?

    python benchmarks/gpu/experts_layer.py --check          # no times
    python benchmarks/gpu/experts_layer.py --minutes 9

`flashsparse::experts` is held against a loop over experts in float64: by the grouped kernels in
each of their shapes, unpacked for torch's grouped product, and by the fallback; then the replay of
CUDA graphs under other routings against eager calls, and small random Qwen3-MoE and Mixtral models,
packed on the card, against the dense ones that they were packed from. Nothing is timed while a
result is wrong.
Then whole layers over cold weights, by turns with torch's grouped product in bf16, and with vLLM's
bf16, fp8 and Marlin int4 where vLLM is installed. `experts.py` times the products alone.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import experts as products
import torch
from _device import Budget, Stopwatch, _measure, cold_bytes
from _launches import gpu_of
from _program import DTYPES, measure, numbers, parser
from experts import DISTINCT, KINDS, MODELS, ROUTINGS, TOLERANCE, Model, routing
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.experts import ExpertStack, PackedStack, grouped, multiply
from flashsparse_plugin.formats import find_form, get_format
from flashsparse_plugin.ops.plan import Product, candidates, override
from flashsparse_plugin.packed import Routed

Row = dict[str, Any]
# The last has rows that are no multiple of 16, and columns that are none of 256.
CHECKED = (MODELS["toy"], Model(7, 3, 264, 40), MODELS["Qwen3-30B-A3B"])
COUNTS = (1, 5, 33, 257)
VARIANTS: dict[str, Row] = {
    "silu": {},
    "weights on input": {"weights_on_input": True},
    "gpt-oss": {"activation": "swigluoai", "limit": 2.0, "biased": True},
}


class Layer:
    """Packed experts, prepared for the grouped kernel; every DISTINCT-th expert is the same."""

    def __init__(self, model: Model, kind: str, dtype: torch.dtype, device: torch.device):
        self.model, self.kind, self.dtype, self.device = model, kind, dtype, device
        both, hidden = (2 * model.intermediate, model.hidden), (model.hidden, model.intermediate)
        self.w13, self.dense13 = self._stack(both, 2)
        self.w2, self.dense2 = self._stack(hidden, 1)
        self.nbytes = self.w13.nbytes + self.w2.nbytes
        self.biases = [
            torch.randn(model.experts, rows, device=device, dtype=dtype)
            for rows in (both[0], model.hidden)
        ]

    def _stack(self, shape: tuple[int, int], sides: int) -> tuple[ExpertStack, Tensor]:
        values, group = KINDS[self.kind]
        options = {"n": 2, "m": 4, "values": values, "group": group}
        scheme, packed = get_format("nm_vector").scheme(self.dtype, options), []
        for _ in range(min(DISTINCT, self.model.experts)):
            weight = random_weight(shape, 1.0, self.dtype, self.device)
            packed.append(scheme.format.pack(scheme.format.conform(weight, scheme), scheme))
        number = range(self.model.experts)
        stack = ExpertStack.of([packed[i % len(packed)] for i in number])
        if self.device.type == "cuda":
            made = stack.prepare(self.device, sides)
        else:
            form = find_form("sparse_24").scheme(self.dtype, scheme.values)
            made = stack.grouped(form, sides, self.device)
        assert made.sides == sides, f"{self.kind} has no grouped kernel here"
        return made, torch.stack([each.unpack() for each in packed])

    def batch(
        self, x: Tensor, ids: Tensor, weights: Tensor, biased: bool = False, **rest: Any
    ) -> Routed:
        biases = self.biases if biased else (None, None)
        rest = {"activation": "silu", "w13_bias": biases[0], "w2_bias": biases[1]} | rest
        return Routed(x, ids, weights, **rest)

    def exact(self, batch: Routed) -> Tensor:
        """A loop over experts in float64."""
        y = torch.zeros_like(batch.x, dtype=torch.float64)
        local = grouped.local_ids(batch.ids, batch.expert_map, self.model.experts)
        for expert in local.unique().tolist():
            if expert == self.model.experts:
                continue
            token, j = (local == expert).nonzero(as_tuple=True)
            x, weight = batch.x[token].double(), batch.weights[token, j].double()[:, None]
            both = x @ self.dense13[expert % len(self.dense13)].double().T
            both = both * weight if batch.weights_on_input else both
            if batch.w13_bias is not None:
                both += batch.w13_bias[expert].double()
            gate, up = both.chunk(2, -1)
            if batch.limit:
                gate, up = gate.clamp(max=batch.limit), up.clamp(-batch.limit, batch.limit)
            if batch.activation == "silu":
                h = F.silu(gate) * up
            else:
                h = gate * torch.sigmoid(batch.alpha * gate) * (up + 1)
            out = h @ self.dense2[expert % len(self.dense2)].double().T
            if batch.w2_bias is not None:
                out += batch.w2_bias[expert].double()
            y.index_add_(0, token, out if batch.weights_on_input else out * weight)
        return y

    def op(self, batch: Routed, stacks: tuple[ExpertStack, ExpertStack] | None = None) -> Tensor:
        """The layer as integrations run it."""
        w13, w2 = stacks or (self.w13, self.w2)
        return multiply(
            *(batch.x, batch.ids, batch.weights, w13, w2, batch.activation),
            *(batch.w13_bias, batch.w2_bias, batch.expert_map),
            *(batch.limit, batch.alpha, batch.weights_on_input),
        )

    def launches(self, tokens: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """A launch of each shape of the grouped kernels: of which product, and its numbers."""
        shape, (values, group) = (self.model.intermediate, self.model.hidden), KINDS[self.kind]
        counts = self.model.experts, self.model.top_k
        product = Product(
            shape, tokens, self.w13.nbytes, values, group or 0, (2, 4, 1), experts=counts
        )
        found = {}
        for name in ("up", "many_up") if self.device.type == "cuda" else ():
            kernel = f"sparse_24_experts.{name}"
            for launch in candidates(kernel, product, gpu_of(self.device)):
                found[f"{name} {launch.numbers[0]}"] = kernel, launch.numbers
        return found

    def copy(self) -> tuple[ExpertStack, ExpertStack]:
        w13, w2 = (
            replace(each, tensors={name: t.clone() for name, t in each.tensors.items()})
            for each in (self.w13, self.w2)
        )
        return w13, w2


def routings(model: Model, tokens: int, device: torch.device) -> dict[str, Row]:
    """Every routing that differs: ids, and a map of experts where there is one."""
    chosen = routing(model, tokens, "uniform", tokens, device)
    hot = chosen.clone()
    hot[:, 0] = model.experts - 1
    few = torch.arange(model.top_k, device=device).expand(tokens, -1).int().contiguous()
    away = chosen.clone()
    away[::2, 0] = -1
    places = torch.full((model.experts + 3,), -1, dtype=torch.int32, device=device)
    places[1 : model.experts] = torch.arange(model.experts - 1, device=device).flip(0).int()
    return {
        "uniform": {"ids": chosen.long()},
        "one hot expert": {"ids": hot},
        "empty experts": {"ids": few},
        "-1": {"ids": away},
        "a map": {"ids": (chosen + 2).contiguous(), "expert_map": places},
    }


class Measured:
    """Checks, then measures; `rows` holds everything measured so far."""

    def __init__(self, arguments: Any, device: torch.device, stopwatch: Stopwatch):
        self.rows: list[Row] = []
        self.wrong = self.checked = 0
        self._arguments, self._device, self._stopwatch = arguments, device, stopwatch
        self._dtype, self._kinds = DTYPES[arguments.dtype], arguments.kinds

    def run(self, budget: Budget) -> Iterator[str]:
        for kind in self._kinds:
            for model in CHECKED if self._device.type == "cuda" else CHECKED[:2]:
                self._check(Layer(model, kind, self._dtype, self._device))
            print(f"{kind}: {self.checked} results so far, {self.wrong} wrong", flush=True)
        for kind in ("qwen3_moe", "mixtral"):
            self._check_model(kind)
        print(f"checked: {self.checked} results, {self.wrong} wrong", flush=True)
        if self.wrong or self._arguments.check:
            return
        for name in self._arguments.models:
            layers = [Layer(MODELS[name], k, self._dtype, self._device) for k in self._kinds]
            for tokens in self._arguments.tokens:
                if budget.left < 0:
                    return
                self._time(name, layers, tokens)
                yield f"{name}, {tokens} tokens"

    def _judge(self, good: bool, point: str) -> None:
        self.checked += 1
        if not good:
            self.wrong += 1
            print(f"WRONG {point}")

    def _close(self, y: Tensor, right: Tensor, point: str) -> None:
        error = float((y.double() - right).norm() / right.norm().clamp(min=1e-30))
        self._judge(error <= TOLERANCE, f"{point}: off by {error:.2e}")

    def _inputs(self, model: Model, tokens: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(tokens, model.hidden, device=self._device, dtype=self._dtype)
        return x, torch.rand(tokens, model.top_k, device=self._device) + 0.1

    def _check(self, layer: Layer) -> None:
        where = f"{layer.kind}, {list(layer.model)}"
        for tokens, (what, variant) in itertools.product(COUNTS, VARIANTS.items()):
            x, weights = self._inputs(layer.model, tokens)
            for name, route in routings(layer.model, tokens, self._device).items():
                batch = layer.batch(x, weights=weights, **route, **variant)
                point = f"{where}, {tokens} tokens, {name}, {what}"
                right = layer.exact(batch)
                for shape, (kernel, launch) in layer.launches(tokens).items():
                    with override(kernel, launch):
                        y = grouped.by_kernel(batch, layer.w13, layer.w2)
                    self._close(y, right, f"{point}, {shape}")
                self._close(layer.op(batch), right, f"{point}, the op")
                if self._unpacks():
                    y = grouped.by_unpacking(batch, layer.w13, layer.w2)
                    self._close(y, right, f"{point}, unpacked")
            if what == "silu":
                wide = replace(batch, x=batch.x.float())  # which the kernel does not take
                self._close(layer.op(wide), right, f"{where}, {tokens} tokens, the fallback")
        if self._device.type == "cuda":
            self._check_graph(layer, where)

    def _unpacks(self) -> bool:
        return hasattr(F, "grouped_mm") and self._dtype == torch.bfloat16

    def _check_graph(self, layer: Layer, where: str) -> None:
        """Graphs of each way to run a layer, under routings that they were not captured with."""
        ways: dict[str, Callable[[Routed], Tensor]] = {"the op": layer.op}
        for shape, own in layer.launches(33).items():
            ways[shape] = partial(self._overridden, layer, own)
        if self._unpacks() and torch.cuda.get_device_capability() in ((9, 0), (10, 0)):
            ways["unpacked"] = lambda batch: grouped.by_unpacking(batch, layer.w13, layer.w2)
        ways["the fallback"] = lambda batch: layer.op(replace(batch, x=batch.x.float()))
        for (way, call), tokens in itertools.product(ways.items(), (1, 33)):
            x, weights = self._inputs(layer.model, tokens)
            ids = routing(layer.model, tokens, "uniform", 0, self._device)
            batch = layer.batch(x, ids, weights)
            call(batch)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call(batch)
            for seed, skew in itertools.product(range(1, 4), ("uniform", "zipf")):
                ids.copy_(routing(layer.model, tokens, skew, seed, self._device))
                graph.replay()
                point = f"{where}, {way}, {tokens} tokens: replay under {skew} {seed}"
                if way == "the fallback":  # which adds up in another order
                    self._close(captured, layer.exact(batch), point)
                else:
                    self._judge(torch.equal(captured, call(batch)), point)

    def _overridden(self, layer: Layer, own: tuple[str, tuple[int, ...]], batch: Routed) -> Tensor:
        with override(*own):
            return grouped.by_kernel(batch, layer.w13, layer.w2)

    def _check_model(self, kind: str) -> None:
        """A small random model, packed on the card, beside the dense one that it is packed from."""
        import transformers
        from transformers import AutoModelForCausalLM

        transformers.logging.set_verbosity_error()
        with tempfile.TemporaryDirectory() as folder:
            dense, packed = small_model(kind, Path(folder))
            ids = torch.randint(0, 128, (3, 33), generator=torch.Generator().manual_seed(0))

            def logits(path: Path, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Any]:
                model = AutoModelForCausalLM.from_pretrained(
                    path, dtype=dtype, device_map={"": device}
                )
                with torch.no_grad():
                    return model(ids.to(device)).logits.double().cpu(), model

            right, _ = logits(dense, torch.float32, torch.device("cpu"))
            own, _ = logits(dense, self._dtype, self._device)
            ours, model = logits(packed, self._dtype, self._device)
            errors = [_median(each, right) for each in (ours, own)]
            point = f"{kind}: off by {errors[0]:.2e}, dense {errors[1]:.2e}"
            self._judge(errors[0] <= 1.5 * errors[1] + 1e-3, point)
            print(point)
            stacks = [m for m in model.modules() if isinstance(m, PackedStack)]
            wanted = self._device.type == "cuda"
            good = len(stacks) == 4 and all(bool(m.stack.sides) == wanted for m in stacks)
            self._judge(good, f"{kind}: experts are not in the form of the grouped kernel")
            self._judge(_same_files(model, packed, Path(folder) / "saved"), f"{kind}: saved anew")
            with torch.no_grad():
                error = _median(model.cpu()(ids).logits.double(), right)
            self._judge(error <= 1.5 * errors[1] + 1e-3, f"{kind}: on the CPU off by {error:.2e}")

    def _time(self, name: str, layers: list[Layer], tokens: int) -> None:
        model = MODELS[name]
        x, weights = self._inputs(model, tokens)
        for skew in self._arguments.routings:
            routes = [routing(model, tokens, skew, seed, self._device) for seed in range(ROUTINGS)]
            calls: dict[str, Callable[[], object]] = {}
            for kind, layer in zip(self._kinds, layers, strict=True):
                calls[kind] = self._call(layer, layer.op, x, weights, routes)
                if self._unpacks():
                    run = lambda batch, stacks: grouped.by_unpacking(batch, *stacks)  # noqa: E731
                    calls[f"{kind}, unpacked"] = self._call(layer, run, x, weights, routes)
            calls |= products.rivals(model, x, weights, routes, cold_bytes(self._device))
            turns = {kind: (call, 2 * ROUTINGS) for kind, call in calls.items()}
            for kind, time in self._stopwatch.in_turns(turns).items():
                row = {"model": name, "tokens": tokens, "routing": skew, "kind": kind}
                self.rows.append(row | {"layer_us": round(time.microseconds, 2), "products_us": ""})

    def _call(
        self,
        layer: Layer,
        run: Callable[..., Tensor],
        x: Tensor,
        weights: Tensor,
        routes: list[Tensor],
    ) -> Callable[[], Tensor]:
        copies = _measure.Rotation(layer.copy, layer.nbytes, cold_bytes(self._device))
        turn = itertools.cycle([layer.batch(x, ids, weights) for ids in routes])
        return lambda: run(next(turn), copies())


def small_model(kind: str, folder: Path) -> tuple[Path, Path]:
    """Saves a random model whose weights are 2:4 and int8 numbers; dense, and packed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from flashsparse_plugin.checkpoint import convert_checkpoint, unpack_checkpoint
    from flashsparse_plugin.expert_layout import experts_of
    from flashsparse_plugin.modules import linear_modules, weight_of

    own: Row = {"num_experts": 6} if kind == "qwen3_moe" else {"num_local_experts": 6}
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=256, intermediate_size=200, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, num_experts_per_tok=2,
        moe_intermediate_size=200, tie_word_embeddings=False, **own,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    format = get_format("nm_vector")
    scheme = format.scheme(torch.bfloat16, {"n": 2, "m": 4})
    with torch.no_grad():
        for parameter in experts_of(model).values():
            for expert in parameter.normal_(std=0.1):
                expert.copy_(format.conform(expert.contiguous(), scheme))
        for layer in linear_modules(model).values():
            weight = weight_of(layer)
            weight.copy_(format.conform(weight.contiguous(), scheme))
    model.save_pretrained(folder / "pruned")
    convert_checkpoint(folder / "pruned", folder / "packed", format="2:4-int8")
    unpack_checkpoint(folder / "packed", folder / "dense")
    return folder / "dense", folder / "packed"


def _median(logits: Tensor, right: Tensor) -> float:
    """The median over tokens of the relative error; a few may be routed otherwise by rounding."""
    return float(((logits - right).norm(dim=-1) / right.norm(dim=-1)).median())


def _same_files(model: Any, packed: Path, out: Path) -> bool:
    """Whether a model is saved as the same tensors as it was loaded from."""
    from safetensors.torch import load_file

    model.save_pretrained(out)
    found = [
        {key: t for path in folder.glob("*.safetensors") for key, t in load_file(path).items()}
        for folder in (packed, out)
    ]
    return found[0].keys() == found[1].keys() and all(
        torch.equal(tensor, found[1][key].to(tensor.dtype)) for key, tensor in found[0].items()
    )


def main() -> int:
    options = parser(__doc__, minutes=9.0, dtype="bfloat16")
    options.add_argument("--check", action="store_true", help="no times")
    options.add_argument(
        "--models", type=lambda text: text.split(","), default=["Qwen3-30B-A3B", "Mixtral-8x7B"]
    )
    options.add_argument("--kinds", type=lambda text: text.split(";"), default=list(KINDS)[:4])
    options.add_argument("--tokens", type=numbers, default=[1, 4, 8, 16, 32, 64, 128, 256])
    options.add_argument("--routings", type=lambda text: text.split(","), default=["uniform"])
    measured = measure(Measured, options.parse_args(), "experts_layer.csv", products.show)
    print(f"{measured.checked} results checked, {measured.wrong} wrong")
    return int(measured.wrong > 0 or not measured.checked)


if __name__ == "__main__":
    sys.exit(main())
