# SPDX-License-Identifier: Apache-2.0
"""Are N:M weights multiplied right? Every way to call them, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from _check import DTYPES, Checker, errors_of
from _device import _formats
from _launches import launches
from _nm import LONG_VECTORS, TWO_FOUR, VALUES, VECTORS, pattern_weight
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats.pattern.options import PatternOptions

OWN_TOKENS = 64  # up to which no library multiplies by default


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int]
    options: PatternOptions
    dtype: torch.dtype
    tokens: tuple[int, ...]
    planned: bool = False  # also by launches of every compiled shape

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.shape[0]}x{self.shape[1]}, {self.options.title}, {name}"


def cases() -> Iterator[Case]:
    """All cases, the most informative first."""
    patterns = (
        TWO_FOUR,
        *VECTORS,
        PatternOptions(n=1, m=4),
        PatternOptions(n=2, m=8, vector_length=4),
        PatternOptions(n=4, m=16, vector_length=16),
        PatternOptions(n=8, m=16, vector_length=128),
        PatternOptions(n=8, m=16, vector_length=8),
        PatternOptions(n=3, m=5, vector_length=2),
    )
    for dtype, options in itertools.product(DTYPES, patterns[:5]):
        for shape in ((4096, 4096), (14336, 4096), (6144, 4096)):
            yield Case(shape, options, dtype, (1, 8, 16, 17, 32, 64, 100, 300))
    for dtype, options in itertools.product(DTYPES, (*patterns[:5], *LONG_VECTORS)):
        for shape in ((4096, 4096), (1000, 1100), (300, 4100)):
            # Launches of the kernels for vectors of 64 and 128 rows, at edges of their tiles.
            planned = options in LONG_VECTORS and shape == (1000, 1100)
            yield Case(shape, options, dtype, (65, 128, 200, 513, 1024), planned)
    for dtype, options in itertools.product(DTYPES, patterns):
        for shape in ((1024, 1024), (640, 2304), (384, 896)):
            yield Case(shape, options, dtype, (1, 8, 13, 16, 32, 61, 130), planned=True)
        for shape in ((1, 1), (33, 130), (129, 63), (300, 300), (1000, 4100), (4100, 1000)):
            yield Case(shape, options, dtype, (1, 3, 8, 16, 33, 64, 70))
    for options in patterns:
        yield Case((300, 300), options, torch.float32, (1, 8, 40))


def value_cases() -> Iterator[Case]:
    """Those with values of 8 and 4 bits."""
    patterns = (
        *VALUES,
        PatternOptions(n=2, m=4, values="int4", group=32),
        PatternOptions(n=2, m=4, values="int4", group=64),
        PatternOptions(n=2, m=8, vector_length=4, values="int8"),
        PatternOptions(n=4, m=16, vector_length=16, values="fp8_e4m3"),
        PatternOptions(n=8, m=16, vector_length=128, values="int8"),
        PatternOptions(n=8, m=16, vector_length=8, values="int8"),
        PatternOptions(n=8, m=32, vector_length=32, values="int4", group=128),
        PatternOptions(n=3, m=5, vector_length=2, values="int8"),
    )
    for options, dtype in itertools.product(patterns, DTYPES):
        for shape in ((1024, 1024), (640, 2304), (384, 896)):
            yield Case(shape, options, dtype, (1, 8, 13, 16, 32, 61, 130), planned=True)
        for shape in ((1, 1), (33, 130), (129, 63), (300, 300), (1000, 4100), (4100, 1000)):
            yield Case(shape, options, dtype, (1, 3, 8, 16, 33, 64, 70))
    for options, dtype in itertools.product(VALUES, DTYPES):
        for shape in ((4096, 4096), (14336, 4096), (6144, 4096)):
            yield Case(shape, options, dtype, (1, 8, 16, 17, 32, 64, 100, 300, 1024))


def small_cases() -> Iterator[Case]:
    for dtype, options in itertools.product(DTYPES, (TWO_FOUR, VECTORS[2], *VALUES[:3])):
        yield Case((160, 320), options, dtype, (1, 9, 33))


class NMChecker(Checker):
    """Checks weights that follow a pattern, in the form that their device reads."""

    def _check(self, case: Case, number: int) -> None:
        weight = pattern_weight(case.shape, case.options, case.dtype, self._device, number)
        stored = fs.pack(weight, "nm_vector", case.options.model_dump())
        packed, whole = stored.prepare(self._device), in_float32(stored)
        form = packed.scheme.format.name
        rounded = whole.to(case.dtype)
        self.tally.add("unpacked", torch.equal(packed.unpack(), rounded), f"{case}, {form}")
        self.tally.add("stored again", same(packed.transcode(stored.scheme), stored), f"{case}")
        # A kernel may take codes times scales as they are, or rounded as unpacking rounds them.
        weights = [each.to(self._reference).double().T for each in (whole, rounded)]
        weights = weights[: 2 if case.options.value_type else 1]
        for index, tokens in enumerate(case.tokens):
            x = self._random((tokens * case.shape[1] + 1,), case.dtype)
            x = x[number % 2 : number % 2 + tokens * case.shape[1]].view(tokens, -1)
            bias = self._random(case.shape[:1], case.dtype) if (number + index) % 2 else None
            where = f"{case}, {form}, {tokens} tokens"
            own = tokens <= OWN_TOKENS and form != "nm_vector"  # which multiplies by the library
            plan = None if own else _formats.IMPLEMENTATIONS["sparse"]
            op = partial(_formats.multiply, packed, bias=bias, plan=plan)
            y = op(x)
            norm, element = self._nearest(y, x, weights, bias)
            sparse = case.dtype != torch.float32 and form != "nm_vector"
            own |= self._device.type == "cuda" and sparse
            self._judge(norm, element, where, 1.0 if own else float("inf"))
            if tokens > OWN_TOKENS:
                # By the library an element may be as far off as the library always is.
                y_library = op(x, plan=_formats.IMPLEMENTATIONS["unpacked"])
                norm, element = self._nearest(y_library, x, weights, bias)
                self._judge(norm, element, f"{where}, unpacked", float("inf"))
            self.tally.add("the same again", all(torch.equal(y, op(x)) for _ in range(2)), where)
            if own and self._device.type == "cuda" and index == number % len(case.tokens):
                self._check_stream(op, x, y, where)
                if self._graphs:
                    self._check_graph(op, x, y, where)
            for launch in launches(packed, tokens, self._device) if case.planned else ():
                twice = [launch.linear(packed, x, bias) for _ in range(2)]
                norm, element = self._nearest(twice[0], x, weights, bias)
                self._judge(norm, element, f"{where}, {launch}")
                self.tally.add("the same again", torch.equal(*twice), f"{where}, {launch}")

    def _nearest(
        self, y: Tensor, x: Tensor, weights: Sequence[Tensor], bias: Tensor | None
    ) -> tuple[float, float]:
        """Errors by the weight that is nearest in the norm."""
        errors = (errors_of(y, x, weight, bias, self._reference) for weight in weights)
        return min(((float(norm), float(element)) for norm, element in errors), key=max)


def in_float32(stored: fs.PackedWeight) -> Tensor:
    """The weight before it is rounded to its dtype: code x scale."""
    if stored.format.is_exact(stored.scheme):
        return stored.unpack()
    scheme = stored.format.scheme(torch.float32, stored.scheme.values)
    tensors = {**stored.tensors, "weight_scale": stored.tensors["weight_scale"].float()}
    return fs.PackedWeight(scheme, stored.shape, tensors).unpack()


def same(one: fs.PackedWeight, other: fs.PackedWeight) -> bool:
    return all(torch.equal(one.tensors[name], each) for name, each in other.tensors.items())
