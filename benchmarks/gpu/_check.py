# SPDX-License-Identifier: Apache-2.0
"""How products are checked: against float64, with the largest error that a right one may have.

Products of 16-bit numbers are exact in float32, so an output errs by

    its own rounding       u |y|, u = 2^-11 (float16), 2^-8 (bfloat16) or 2^-24 (float32)
    the sums in float32    a tensor core adds 16 products at a time and truncates, it does not
                           round: 2^-23 for each of K/16 steps, some more for the split over K and
                           the bias, of the terms' sizes |x| |w| in an element and, as terms of
                           either sign come in no order, of |y| itself in the norm

Both are checked: ||y - y64|| / ||y64|| tells of many small errors, and the single element, which a
lost weight moves by far more than its bound, of one large error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from _device import Budget
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)


@dataclass
class Tally:
    """What was checked and what was wrong."""

    checks: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    worst: float = 0.0  # error / bound, in the norm
    out_of_time: bool = False

    def add(self, what: str, good: bool, where: object) -> None:
        """Counts one check."""
        self.checks[what] = self.checks.get(what, 0) + 1
        if not good:
            self.failures.append(f"{what}: {where}")

    def summary(self) -> str:
        """One line with the counts."""
        counts = ", ".join(f"{count} {what}" for what, count in self.checks.items())
        end = "; OUT OF TIME, not all was checked" if self.out_of_time else ""
        return (
            f"{sum(self.checks.values())} checks ({counts}), {len(self.failures)} failures, "
            f"largest error {self.worst:.2f} of its bound{end}"
        )


class Checker:
    """Runs cases; a subclass says how one is checked.

    Attributes:
        tally: What was found.
    """

    def __init__(self, device: torch.device, reference: torch.device, graphs: bool):
        """
        Args:
            device: Where the ops run.
            reference: Where float64 is computed: the same card, or a CPU beside a tool.
            graphs: Whether to replay calls from CUDA graphs, too.
        """
        self.tally = Tally()
        self._device, self._reference = device, reference
        self._graphs = graphs and device.type == "cuda"
        self._generator = torch.Generator(device).manual_seed(0)

    def run(self, todo: Iterator[Any], budget: Budget) -> Tally:
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

    def _check(self, case: Any, number: int) -> None:
        raise NotImplementedError

    def _judge(self, norm: float, element: float, where: str, limit: float = 1.0) -> None:
        """Counts the errors of one product, as shares of their bounds."""
        self.tally.worst = max(self.tally.worst, norm)
        self.tally.add("exact in the norm", norm <= 1, f"{where}: {norm:.3g} of its bound")
        good = element <= limit
        self.tally.add("exact in each element", good, f"{where}: {element:.3g} of its bound")

    def _check_stream(
        self, op: Callable[[Tensor], Tensor], x: Tensor, wanted: Tensor, where: str
    ) -> None:
        """Calls `op` on a stream of its own, where x arrives late.

        An op that does not wait for its stream reads NaN.
        """
        stream, late = torch.cuda.Stream(), torch.full_like(x, torch.nan)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000)  # cycles
            late.copy_(x)
            y = op(late)
        torch.cuda.current_stream().wait_stream(stream)
        self.tally.add("on another stream", torch.equal(y, wanted), where)

    def _check_graph(
        self, op: Callable[[Tensor], Tensor], x: Tensor, wanted: Tensor, where: str
    ) -> None:
        """Records `op` with another x and replays it twice: its counters must be zero again."""
        still = torch.full_like(x, 0.5)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            op(still)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = op(still)
        still.copy_(x)
        for _ in range(2):
            y.fill_(torch.nan)
            graph.replay()
            self.tally.add("replayed from a graph", torch.equal(y, wanted), where)

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device).to(dtype)


class Exact:
    """A product in float64, and the sizes of its terms; `weight` is [in_features, out_features]."""

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, reference: torch.device
    ) -> None:
        x = x.to(reference).double()
        self.y, self._sizes, self._terms = x @ weight, x.abs() @ weight.abs(), weight.shape[0]
        if bias is not None:
            self.y += bias.to(reference).double()
            self._sizes += bias.to(reference).abs()

    def errors(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Errors of y as shares of their bounds: in the norm, and the largest of an element."""
        numbers = torch.finfo(y.dtype)
        rounding = numbers.eps / 2
        # A plain float32 product adds one by one, so it rounds once per term.
        steps = self._terms / 16 + 64 if y.dtype != torch.float32 else self._terms + 64
        sums = steps * 2.0**-23
        difference = (y.to(self.y.device).double() - self.y).abs()
        smallest = numbers.tiny * numbers.eps  # the smallest subnormal number
        bound = (rounding * self.y.abs() + sums * self._sizes) * 1.01 + smallest
        norm = difference.norm() / ((rounding + sums) * self.y.norm() + smallest)
        return norm, (difference / bound).max()


def errors_of(
    y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, reference: torch.device
) -> tuple[Tensor, Tensor]:
    """`Exact.errors` of one product."""
    return Exact(x, weight, bias, reference).errors(y)


@contextlib.contextmanager
def poisoned_memory(device: torch.device) -> Iterator[None]:
    """Fills fresh memory with NaN, which reveals an output that was not written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            if not torch.empty(1000, device=device).isnan().all():
                raise RuntimeError("this torch does not fill fresh memory: nothing is proven")
            yield
        finally:
            torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Makes the library's products keep their sums in float32."""
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
