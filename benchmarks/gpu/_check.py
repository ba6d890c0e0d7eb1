# SPDX-License-Identifier: Apache-2.0
"""Is `tiled_csl_linear` right on this card? Held against float64, in every way it can be called.

How large an error may be. Products of 16-bit numbers are exact in float32, so an output errs by

    its own rounding       u |y|, u = 2^-11 (float16), 2^-8 (bfloat16) or 2^-24 (float32)
    the sums in float32    a tensor core adds 16 products at a time and cuts off, it does not round:
                           2^-23 for each of K/16 steps, some more for the split over K and the
                           bias, of the terms' sizes |x| |w| in an element and, as terms of either
                           sign come in no order, of |y| itself in the norm

Both are checked: ||y - y64|| / ||y64|| tells of many small errors, and the single element, which a
lost weight moves by far more than its bound, of one large error.

More than LIBRARY_TOKENS tokens, and any number where the op is told to unpack, are multiplied by
torch's own library, which by default may add up in 16 bits what it split over K. It is told not to
(`full_precision`), but on an H200 some elements of products with a bias, those that nearly cancel,
were still off by 100 bounds, as if rounded before it. So an element there may be as far off as
F.linear's with the dense weight is, and no further; the bound of the norm holds in any case.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from _device import Budget
from _layers import TILE_COLS, TILE_ROWS, Layer, assembled, skewed_weight
from _plans import plans
from torch import Tensor

from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.ops import ops

TOKENS = (1, 3, 8, 16, 17, 32, 64, 100, 192, 256, 300, 1024)
SIDES = (1, 63, 64, 65, 127, 128, 129, 300)
SPARSITIES = (1.0, 0.99, 0.8, 0.5, 0.49, 0.01, 0.0)
DTYPES = (torch.float16, torch.bfloat16)
REAL = ((4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (7168, 7168))
MANY_TOKENS = 65536
LIBRARY_TOKENS = 192
UNPACKED = "unpacked"


@dataclass(frozen=True)
class Case:
    """A weight and the numbers of tokens to multiply it with."""

    shape: tuple[int, int]
    sparsity: float
    dtype: torch.dtype
    tokens: tuple[int, ...]
    activations: torch.dtype | None = None  # where they differ from the weight
    skewed: bool = False
    planned: bool = False  # by every compiled shape that takes so many tokens, too
    either: bool = False  # by either implementation of the op, whatever it chooses itself, too

    def __str__(self) -> str:
        parts = [
            "x".join(map(str, self.shape)),
            f"{self.sparsity:.0%} zeros",
            str(self.dtype).removeprefix("torch."),
            *(["skewed rows"] if self.skewed else []),
            *([f"x {self.activations}".replace("torch.", "")] if self.activations else []),
        ]
        return ", ".join(parts)


def cases() -> Iterator[Case]:
    """Everything, the most telling first."""
    for dtype, shape in itertools.product(DTYPES, REAL):
        for sparsity in (0.5, 0.8):
            yield Case(shape, sparsity, dtype, TOKENS, either=True)
    for dtype, sparsity in itertools.product(DTYPES, (0.0, 0.5, 0.8, 0.9)):
        for shape in ((300, 300), (200, 1100), (1920, 192)):
            yield Case(shape, sparsity, dtype, (1, 8, 13, 16, 32, 61), planned=True)
    for dtype in DTYPES:
        yield Case((300, 129), 0.8, dtype, (MANY_TOKENS,), either=True)
        for shape, sparsity in itertools.product(((129, 65), (300, 300), (64, 128)), SPARSITIES):
            yield Case(shape, sparsity, dtype, TOKENS, either=True)
    for dtype, shape in itertools.product(DTYPES, ((300, 300), (128, 4096), (4096, 128))):
        yield Case(shape, 0.8, dtype, TOKENS, skewed=True, either=True)
        yield Case(shape, 0.8, dtype, (1, 8, 100), activations=torch.float32)
    yield Case((300, 300), 0.8, torch.float16, (1, 8, 100), activations=torch.bfloat16)
    for dtype, sparsity in itertools.product(DTYPES, SPARSITIES):
        for shape in itertools.product(SIDES, SIDES):
            yield Case(shape, sparsity, dtype, TOKENS)


def small_cases() -> Iterator[Case]:
    """A few, for tools that make every access a hundred times as long, and for a CPU.

    None of them needs a kernel of another library, in which a tool might find something of its own.
    """
    for dtype in DTYPES:
        yield Case((129, 200), 0.8, dtype, (1, 8, 17))
        yield Case((300, 256), 0.5, dtype, (16, 33))
        yield Case((64, 65), 0.0, dtype, (3, 64))
        yield Case((200, 130), 1.0, dtype, (8,))
        yield Case((256, 1024), 0.8, dtype, (16, 100), skewed=True)


@dataclass
class Tally:
    """What was checked and what was wrong."""

    checks: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    worst: float = 0.0  # error / bound, in the norm
    out_of_time: bool = False

    def add(self, what: str, good: bool, where: object) -> None:
        self.checks[what] = self.checks.get(what, 0) + 1
        if not good:
            self.failures.append(f"{what}: {where}")

    def summary(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.checks.items())
        end = "; OUT OF TIME, not all was checked" if self.out_of_time else ""
        return (
            f"{sum(self.checks.values())} checks ({counts}), {len(self.failures)} failures, "
            f"largest error {self.worst:.2f} of its bound{end}"
        )


def has_kernel(op: str, device: torch.device) -> bool:
    key = device.type.upper()
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"flashsparse::{op}", key)


class Checker:
    """Runs cases. `reference` is where float64 is computed: the card, or a CPU beside a tool."""

    def __init__(self, device: torch.device, reference: torch.device, graphs: bool):
        self.tally = Tally()
        self._device = device
        self._reference = reference
        self._graphs = graphs and device.type == "cuda"
        self._generator = torch.Generator(device).manual_seed(0)

    def run(self, todo: Iterator[Case], budget: Budget) -> Tally:
        """Checks until all is done or the time is over."""
        with poisoned_memory(self._device), full_precision():
            for number, case in enumerate(todo):
                if budget.left < 0:
                    self.tally.out_of_time = True
                    break
                try:
                    self._check(case, number)
                except RuntimeError as error:
                    self.tally.add("ran", False, f"{case}: {error}")
                    if "CUDA error" in str(error):  # the context is lost: nothing runs after it
                        break
        return self.tally

    def _check(self, case: Case, number: int) -> None:
        weight, words, offsets = self._packed(case, number)
        unpacked = ops.tiled_csl_unpack(words, offsets, *case.shape, case.dtype)
        self.tally.add("unpacked", torch.equal(unpacked, weight), case)
        if has_kernel("tiled_csl_pack", self._device):
            again = ops.tiled_csl_pack(weight)
            same = torch.equal(again[0], words) and torch.equal(again[1], offsets)
            self.tally.add("packed", same, case)
        exact = weight.to(self._reference).double().T
        dtype = case.activations or case.dtype
        found = []
        for index, tokens in enumerate(case.tokens):
            x = self._activations(tokens, case.shape[1], dtype, shifted=(number + index) % 4 == 3)
            bias = self._random(case.shape[0], dtype) if (number + index) % 2 else None
            arguments = (words, offsets, case.shape[0], case.dtype, bias)
            self._leave_nan(tokens * case.shape[0])
            y = ops.tiled_csl_linear(x, *arguments)
            repeated = [ops.tiled_csl_linear(x, *arguments) for _ in range(2)]
            same = all(torch.equal(y, z) for z in repeated)
            where = f"{case}, {tokens} tokens"
            norm, element = errors_of(y, x, exact, bias, self._reference)
            ours = library = torch.ones(())
            if x.dtype == weight.dtype and (tokens > LIBRARY_TOKENS or case.either):
                dense = F.linear(x, weight, bias)
                library = errors_of(dense, x, exact, bias, self._reference)[1].clamp(min=1)
            limit = library if tokens > LIBRARY_TOKENS else ours
            found.append((where, norm, element, limit, same))
            for name, op, chosen in self._others(case, tokens):
                self._leave_nan(tokens * case.shape[0])
                twice = [op(x, *arguments, *chosen) for _ in range(2)]
                errors = errors_of(twice[0], x, exact, bias, self._reference)
                limit = library if name == UNPACKED else ours
                found.append((f"{where}, {name}", *errors, limit, torch.equal(*twice)))
            if self._device.type == "cuda" and index == number % len(case.tokens):
                self._check_stream(x, arguments, y, where)
                if self._graphs:
                    self._check_graph(x, arguments, y, where)
        for where, norm, element, limit, same in found:
            self.tally.worst = max(self.tally.worst, float(norm))
            error = f"{where}: {float(norm):.3g} of its bound"
            self.tally.add("exact in the norm", float(norm) <= 1, error)
            error = f"{where}: {float(element):.3g} of its bound"
            self.tally.add("exact in each element", float(element) <= float(limit), error)
            self.tally.add("the same again", same, where)

    def _others(
        self, case: Case, tokens: int
    ) -> Iterator[tuple[str, Callable[..., Tensor], tuple[int, ...]]]:
        """What else computes the product: its name, its op, and what tells the op so."""
        if case.either:
            yield "by the sparse kernel", ops.tiled_csl_linear, (tokens,)
            yield UNPACKED, ops.tiled_csl_linear, (0,)
        if case.planned:
            for plan in plans(case.shape, tokens, self._device):
                chosen = (plan.shape.index, plan.blocks)
                yield str(plan), ops.tiled_csl_linear_planned, chosen

    def _packed(self, case: Case, number: int) -> tuple[Tensor, Tensor, Tensor]:
        whole = case.shape[0] % TILE_ROWS == 0 and case.shape[1] % TILE_COLS == 0
        if whole and not case.skewed and case.shape in REAL:
            layer = assembled(Layer("", "", *case.shape), case.sparsity, case.dtype, self._device)
            return layer.dense, layer.weight_packed, layer.tile_offsets
        made = skewed_weight if case.skewed else random_weight
        weight = made(case.shape, 1 - case.sparsity, case.dtype, seed=number)
        words, offsets = ops.tiled_csl_pack(weight)
        return weight.to(self._device), words.to(self._device), offsets.to(self._device)

    def _random(self, shape: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device).to(dtype)

    def _activations(self, tokens: int, width: int, dtype: torch.dtype, shifted: bool) -> Tensor:
        """x; shifted, it starts where no vector load may: views of larger tensors do."""
        if not shifted:
            return self._random((tokens, width), dtype)
        return self._random(tokens * width + 1, dtype)[1:].view(tokens, width)

    def _leave_nan(self, numbers: int) -> None:
        """Fills what the allocator gives next, also to who asks it past torch's own functions."""
        if self._device.type == "cuda":
            for size, dtype in ((numbers, torch.float16), (numbers, torch.float32)):
                torch.full((size,), torch.nan, dtype=dtype, device=self._device)
            torch.full((8 << 20,), torch.nan, device=self._device)

    def _check_stream(self, x: Tensor, arguments: tuple, wanted: Tensor, where: str) -> None:
        """On a stream of its own, where x is there late: whoever does not wait for it sees NaN."""
        stream = torch.cuda.Stream()
        late = torch.full_like(x, torch.nan)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000)  # cycles
            late.copy_(x)
            y = ops.tiled_csl_linear(late, *arguments)
        torch.cuda.current_stream().wait_stream(stream)
        self.tally.add("on another stream", torch.equal(y, wanted), where)

    def _check_graph(self, x: Tensor, arguments: tuple, wanted: Tensor, where: str) -> None:
        still = torch.full_like(x, 0.5)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ops.tiled_csl_linear(still, *arguments)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ops.tiled_csl_linear(still, *arguments)
        still.copy_(x)
        for _ in range(2):
            y.fill_(torch.nan)
            graph.replay()
            self.tally.add("replayed from a graph", torch.equal(y, wanted), where)


def errors_of(
    y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, reference: torch.device
) -> tuple[Tensor, Tensor]:
    """Errors of y as shares of their bounds: in the norm, and the largest of an element."""
    exact, sizes = x.to(reference).double() @ weight, x.to(reference).double().abs() @ weight.abs()
    if bias is not None:
        exact, sizes = exact + bias.to(reference).double(), sizes + bias.to(reference).abs()
    terms = weight.shape[0]
    numbers = torch.finfo(y.dtype)
    rounding = numbers.eps / 2
    # A plain float32 product adds one by one: rounded, and as many steps as terms.
    steps = terms / 16 + 64 if y.dtype != torch.float32 else terms + 64
    sums = steps * 2.0**-23
    difference = (y.to(reference).double() - exact).abs()
    smallest = numbers.tiny * numbers.eps  # below it there is nothing to round to
    element = difference / ((rounding * exact.abs() + sums * sizes) * 1.01 + smallest)
    norm = difference.norm() / ((rounding + sums) * exact.norm() + smallest)
    return norm, element.max()


@contextlib.contextmanager
def poisoned_memory(device: torch.device) -> Iterator[None]:
    """Fresh memory is NaN, so that an output that was not written shows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            if not torch.empty(1000, device=device).isnan().all():
                raise RuntimeError("this torch does not poison fresh memory: nothing is proven")
            yield
        finally:
            torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """The library's products, where many tokens use them, keep their sums in float32 here."""
    matmul = torch.backends.cuda.matmul
    flags = [f"allow_{dtype}_reduced_precision_reduction" for dtype in ("fp16", "bf16")]
    before = {flag: getattr(matmul, flag) for flag in flags}
    for flag in flags:
        setattr(matmul, flag, False)
    try:
        yield
    finally:
        for flag, value in before.items():
            setattr(matmul, flag, value)
