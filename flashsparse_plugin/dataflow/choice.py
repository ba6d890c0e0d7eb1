# SPDX-License-Identifier: Apache-2.0
"""`auto`: for one layer the format that should be fastest on a device, or none.

A layer stays dense unless some format holds its weight as it is, in no more bytes, and pays there
(`expected.Speed.pays`). Of two forms of a pattern that are about as fast at the batch, the faster
one with prompts is taken. On a CPU products of few tokens take as long as reading the weight, so
the fewest bytes win.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..formats import format_names, get_format
from ..formats.values.dtypes import packable_dtype
from ..gpu import Gpu
from ..names import DENSE
from ..packed import FormatError, Scheme
from ..served import Experts
from .expected import ESTIMATED, Speed, Target, pays_from, typical_weight
from .experts import PackedExperts, expert_times
from .rivals import EXPERTS_16

ALIKE = 0.9
"""Share of the fastest format's speed at the batch from which on speed with prompts decides."""
PROMPT = 2048
"""Tokens of such a prompt."""


@dataclass(frozen=True)
class Pattern:
    """What a decision depends on of a weight.

    Attributes:
        shape: (out_features, in_features).
        density: Share of the elements that are not zero.
        options: By format that holds the weight as it is, the options for it.
    """

    shape: tuple[int, int]
    density: float
    options: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, weight: Tensor) -> Pattern:
        """Looks at the zeros of a weight [out_features, in_features], on its device."""
        found = {name: get_format(name).options_for(weight) for name in format_names()}
        return cls(
            (weight.shape[0], weight.shape[1]),
            int(weight.count_nonzero()) / max(weight.numel(), 1),
            {name: options for name, options in found.items() if options is not None},
        )

    @classmethod
    def joined(cls, parts: Sequence[Pattern]) -> Pattern:
        """The pattern of weights of one width on top of each other, as engines merge them."""
        first = parts[0]
        rows = sum(part.shape[0] for part in parts)
        kept = sum(part.density * part.shape[0] for part in parts)
        return cls((rows, first.shape[1]), kept / rows, cls.shared(parts))

    @staticmethod
    def shared(parts: Sequence[Pattern]) -> dict[str, Mapping[str, Any]]:
        """The formats that hold all of some weights by the same options, with these."""
        return {
            name: options
            for name, options in parts[0].options.items()
            if all(part.options.get(name) == options for part in parts)
        }


@dataclass(frozen=True)
class Choice:
    """What becomes of a layer, and why.

    Attributes:
        scheme: How to store it; None: dense.
        why: For people, such as "1.3x dense at batch 8 by its cost model".
    """

    scheme: Scheme | None
    why: str

    @property
    def title(self) -> str:
        """Format and options, or "dense"."""
        return DENSE if self.scheme is None else self.scheme.title


@dataclass(frozen=True)
class _Candidate:
    scheme: Scheme
    stored: int  # bytes on disk
    held: int  # bytes in the memory of the device
    speed: Speed | None  # None on a CPU


def choose(pattern: Pattern, dtype: torch.dtype, target: Target) -> Choice:
    """Decides for one layer.

    Args:
        pattern: What its weight is like.
        dtype: Dtype of the weight, which a format that does not take it would round.
        target: The device and the batch.
    """
    found = list(_candidates(pattern, dtype, target))
    zeros = f"{1 - pattern.density:.0%} zeros do not pay"
    if target.gpu is None:
        return _smallest(found, pattern, zeros)
    small = [each for each in found if each.held <= _dense_bytes(pattern.shape, each.scheme)]
    if not small:
        return Choice(None, f"{zeros}: every format would take more memory")
    best = _best(small, pattern, dtype, target)
    told = f"{_ratio(best):.2f}x dense at batch {target.batch}{_origin(best, target.gpu)}"
    if best.speed is not None and best.speed.pays:
        return Choice(best.scheme, told)
    return Choice(None, f"{zeros} {_enough(pattern.shape, target)}: {best.scheme.title} {told}")


def _best(
    found: Sequence[_Candidate], pattern: Pattern, dtype: torch.dtype, target: Target
) -> _Candidate:
    """The fastest candidate; of one pattern's, if alike, the fastest with prompts."""
    best = max(found, key=_ratio)
    zeros = best.scheme.format.pattern(best.scheme)
    alike = {
        each.scheme: each
        for each in found
        if zeros is not None
        and each.scheme.format.pattern(each.scheme) == zeros
        and _ratio(each) >= ALIKE * _ratio(best)
    }
    if len(alike) < 2:
        return best
    prompts = _candidates(pattern, dtype, replace(target, batch=PROMPT))
    read = {each.scheme: _ratio(each) for each in prompts if each.scheme in alike}
    return max(alike.values(), key=lambda each: (read.get(each.scheme, 0.0), _ratio(each)))


def choose_experts(
    patterns: Sequence[Pattern], experts: Experts, dtype: torch.dtype, target: Target
) -> Choice:
    """Decides for the experts of a layer, which are packed alike.

    On a GPU only a format that multiplies them by a grouped kernel is of use.

    Args:
        patterns: What each projection of an expert is like.
        experts: Of the layer.
        dtype: Dtype of the weights.
        target: The device and the batch.
    """
    found: list[tuple[float, int, Scheme]] = []  # with bytes on disk, for ties
    for name, options in Pattern.shared(patterns).items():
        scheme = get_format(name).scheme(packable_dtype(get_format(name), dtype), options)
        runtime = scheme.format.runtime(scheme, target.device)
        held = [typical_weight(each.shape, runtime, each.density) for each in patterns]
        bits = 8 * sum(x.nbytes for x in held) / sum(math.prod(x.shape) for x in patterns)
        stored = sum(typical_weight(x.shape, scheme, x.density).nbytes for x in patterns)
        if target.gpu is None:
            found.append((8 * scheme.dtype.itemsize / bits, -stored, scheme))
            continue
        ours = expert_times(runtime, bits)
        if isinstance(ours, PackedExperts) and ours.takes(experts):
            dense = EXPERTS_16.seconds(experts, target.batch, target.gpu)
            ratio = dense / ours.seconds(experts, target.batch, target.gpu)
            found.append((ratio, -stored, scheme))
    if not found:
        return Choice(None, "experts: no format that multiplies them holds their zeros")
    ratio, _, scheme = max(found, key=lambda each: each[:2])
    if target.gpu is None:
        told, pays = f"{1 / ratio:.0%} of the dense bytes on a CPU", ratio > 1
    else:
        told = f"{ratio:.2f}x dense at batch {target.batch} by its cost model"
        pays = ratio >= ESTIMATED
    return Choice(scheme, told) if pays else Choice(None, f"experts: {scheme.title} {told}")


def weigh(scheme: Scheme, pattern: Pattern, target: Target) -> Choice:
    """What a layer brings that is packed already, beside the dense one.

    Args:
        scheme: How it is stored.
        pattern: What its weight is like.
        target: The device and the batch.
    """
    try:
        found = _candidate(scheme, pattern, target)
    except FormatError:
        return Choice(scheme, "whose cost there is unknown")
    if target.gpu is None or found.speed is None:
        share = found.held / _dense_bytes(pattern.shape, scheme)
        return Choice(scheme, f"{share:.0%} of the dense bytes on a CPU")
    told = f"{_ratio(found):.2f}x dense at batch {target.batch}{_origin(found, target.gpu)}"
    return Choice(scheme, told if found.speed.pays else f"does not pay: {told}")


def _candidates(pattern: Pattern, dtype: torch.dtype, target: Target) -> Iterable[_Candidate]:
    for name, options in pattern.options.items():
        format = get_format(name)
        scheme = format.scheme(packable_dtype(format, dtype), options)
        try:
            yield _candidate(scheme, pattern, target)
        except FormatError:  # nobody knows what it costs there
            continue


def _candidate(scheme: Scheme, pattern: Pattern, target: Target) -> _Candidate:
    runtime = scheme.format.runtime(scheme, target.device)
    held = typical_weight(pattern.shape, runtime, pattern.density)
    speed = None if target.gpu is None else target.speed(held)
    stored = typical_weight(pattern.shape, scheme, pattern.density)
    return _Candidate(scheme, stored.nbytes, held.nbytes, speed)


def _smallest(found: Sequence[_Candidate], pattern: Pattern, zeros: str) -> Choice:
    """On a CPU: the fewest bytes there, and of forms that are alike there the fewest on disk."""
    best = min(found, key=lambda each: (each.held, each.stored), default=None)
    if best is None:
        return Choice(None, "no format holds it")
    share = best.held / _dense_bytes(pattern.shape, best.scheme)
    told = f"{share:.0%} of the dense bytes on a CPU"
    if share < 1:
        return Choice(best.scheme, told)
    return Choice(None, f"{zeros}: {best.scheme.title} {told}")


def _ratio(candidate: _Candidate) -> float:
    return 0.0 if candidate.speed is None else candidate.speed.ratio


def _origin(candidate: _Candidate, gpu: Gpu) -> str:
    origin = candidate.speed and candidate.speed.origin
    if origin:
        return f", {origin}"
    how = " with unverified rates" if gpu.unverified else ""
    return f" by its cost model of an {gpu.name}{how}"


def _enough(shape: tuple[int, int], target: Target) -> str:
    needed = pays_from(shape, target)
    return "(no share does)" if needed is None else f"(from {needed:.0%} on)"


def _dense_bytes(shape: tuple[int, int], scheme: Scheme) -> int:
    return math.prod(shape) * scheme.dtype.itemsize


def lines(choices: Iterable[tuple[str, Choice]]) -> list[str]:
    """What was chosen for layers and why, a line a kind of layer.

    Args:
        choices: By layer, its kind ("q_proj") and what becomes of it.

    Returns:
        Lines such as "q_proj, o_proj (64): tiled_csl, 1.31x dense at batch 8 by its cost model of
        an H200". Layers of one kind that differ only in a figure are told of by the first.
    """
    kinds: dict[tuple[str, str], list[str]] = {}  # by kind and format, why
    for kind, choice in choices:
        kinds.setdefault((kind, choice.title), []).append(choice.why)
    merged: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (kind, title), whys in kinds.items():
        merged.setdefault((title, whys[0]), []).append((kind, len(whys)))
    told = []
    for (title, why), own in merged.items():
        names, count = ", ".join(kind for kind, _ in own), sum(number for _, number in own)
        told.append(f"{names} ({count}): {title}, {why}")
    return told
