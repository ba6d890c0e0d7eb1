# SPDX-License-Identifier: Apache-2.0
"""Checks of the sparse linear layer of one format, in every way in which it can be called.

More than LIBRARY_TOKENS tokens, fewer in small layers, and any number where the op is told to
unpack, are multiplied by torch's own library, which by default may add in 16 bits what it split
over K. It is told not to (`full_precision`), but on an H200 some elements of products with a bias,
those that nearly cancel, were still off by 100 bounds, as if they had been rounded before the bias
was added.
So an element there may be as far off as F.linear's with the dense weight is, and no further; the
bound of the norm holds in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from _check import DTYPES, Checker, errors_of
from _device import _formats
from _launches import launches
from _layers import skewed_weight
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.gpu import find_gpu
from flashsparse_plugin.plan import LIBRARY

TOKENS = (1, 3, 8, 16, 17, 32, 64, 100, 192, 256, 300, 1024)
SIDES = (1, 63, 64, 65, 127, 128, 129, 300)
SPARSITIES = (1.0, 0.99, 0.8, 0.5, 0.49, 0.01, 0.0)
REAL = ((4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (7168, 7168))
MANY_TOKENS = 65536
LIBRARY_TOKENS = 192


@dataclass(frozen=True)
class Case:
    """A weight and the numbers of tokens to multiply it with."""

    shape: tuple[int, int]
    sparsity: float
    dtype: torch.dtype
    tokens: tuple[int, ...]
    activations: torch.dtype | None = None  # where they differ from the weight
    skewed: bool = False
    planned: bool = False  # also by launches of every compiled shape
    either: bool = False  # also by each implementation of the op

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
    """All cases, the most informative first."""
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
    """A few cases, for tools that slow every access down a hundredfold, and for a CPU.

    None of them calls a kernel of another library, in which a tool might report something.
    """
    for dtype in DTYPES:
        yield Case((129, 200), 0.8, dtype, (1, 8, 17))
        yield Case((300, 256), 0.5, dtype, (16, 33))
        yield Case((64, 65), 0.0, dtype, (3, 64))
        yield Case((200, 130), 1.0, dtype, (8,))
        yield Case((256, 1024), 0.8, dtype, (16, 100), skewed=True)


class SparseChecker(Checker):
    """Checks packed weights of one format."""

    def __init__(
        self, device: torch.device, reference: torch.device, graphs: bool, format: str
    ) -> None:
        super().__init__(device, reference, graphs)
        self._format = format

    def _unpacks(self, packed: fs.PackedWeight, tokens: int) -> bool:
        """Whether the op leaves the product to torch's library by its own rule."""
        if self._device.type != "cuda":
            return False
        properties = torch.cuda.get_device_properties(self._device)
        gpu = find_gpu(properties.name, (properties.major, properties.minor))
        form, scheme = packed.scheme.format, packed.scheme
        return form.choose(scheme, packed.shape, packed.nbytes, tokens, gpu) == LIBRARY

    def _check(self, case: Case, number: int) -> None:
        weight = self._weight(case, number)
        packed = self._packed(weight, case)
        exact = weight.to(self._reference).double().T
        dtype = case.activations or case.dtype
        found = []
        for index, tokens in enumerate(case.tokens):
            x = self._activations(tokens, case.shape[1], dtype, shifted=(number + index) % 4 == 3)
            bias = self._random(case.shape[:1], dtype) if (number + index) % 2 else None
            op = partial(_formats.multiply, packed, bias=bias)
            self._leave_nan(tokens * case.shape[0])
            y = op(x)
            same = all(torch.equal(y, op(x)) for _ in range(2))
            where = f"{case}, {tokens} tokens"
            norm, element = errors_of(y, x, exact, bias, self._reference)
            ours = library = torch.ones(())
            unpacks = tokens > LIBRARY_TOKENS or self._unpacks(packed, tokens)
            if x.dtype == weight.dtype and (unpacks or case.either):
                dense = F.linear(x, weight, bias)
                library = errors_of(dense, x, exact, bias, self._reference)[1].clamp(min=1)
            limit = library if unpacks else ours
            found.append((where, norm, element, limit, same))
            for name, other in self._others(case, tokens, packed):
                self._leave_nan(tokens * case.shape[0])
                twice = [other(x, bias=bias) for _ in range(2)]
                errors = errors_of(twice[0], x, exact, bias, self._reference)
                limit = library if name == "unpacked" else ours
                found.append((f"{where}, {name}", *errors, limit, torch.equal(*twice)))
            if self._device.type == "cuda" and index == number % len(case.tokens):
                self._check_stream(op, x, y, where)
                if self._graphs:
                    self._check_graph(op, x, y, where)
        for where, norm, element, limit, same in found:
            self._judge(float(norm), float(element), where, float(limit))
            self.tally.add("the same again", same, where)

    def _others(
        self, case: Case, tokens: int, packed: fs.PackedWeight
    ) -> Iterator[tuple[str, Callable[..., Tensor]]]:
        """The other ways to compute the product: name and call."""
        for name, plan in _formats.IMPLEMENTATIONS.items() if case.either else ():
            yield name, partial(_formats.multiply, packed, plan=plan)
        if case.planned:
            for launch in launches(packed, tokens, self._device):
                yield str(launch), partial(launch.linear, packed)

    def _weight(self, case: Case, number: int) -> Tensor:
        if case.skewed:
            weight = skewed_weight(case.shape, 1 - case.sparsity, case.dtype, seed=number)
            return weight.to(self._device)
        # Random numbers of the CPU for small weights: beside a tool the card runs only our kernels.
        place = self._device if case.shape in REAL else torch.device("cpu")
        weight = random_weight(case.shape, 1 - case.sparsity, case.dtype, place, seed=number)
        return weight.to(self._device)

    def _packed(self, weight: Tensor, case: Case) -> fs.PackedWeight:
        """Packs the weight on either device, which must make the same of it, and prepares it."""
        made = fs.pack(weight, self._format)
        pairs = zip(
            made.tensors.values(),
            fs.pack(weight.cpu(), self._format).tensors.values(),
            strict=True,
        )
        self.tally.add("packed", all(torch.equal(a.cpu(), b) for a, b in pairs), case)
        packed = made.prepare(self._device)
        self.tally.add("unpacked", torch.equal(packed.unpack(), weight), case)
        return packed

    def _activations(self, tokens: int, width: int, dtype: torch.dtype, shifted: bool) -> Tensor:
        """x; shifted, it starts where no vector load may, as views of larger tensors can."""
        if not shifted:
            return self._random((tokens, width), dtype)
        return self._random((tokens * width + 1,), dtype)[1:].view(tokens, width)

    def _leave_nan(self, numbers: int) -> None:
        """Fills the memory that the allocator hands out next with NaN."""
        if self._device.type == "cuda":
            for size, dtype in ((numbers, torch.float16), (numbers, torch.float32)):
                torch.full((size,), torch.nan, dtype=dtype, device=self._device)
            torch.full((8 << 20,), torch.nan, device=self._device)
