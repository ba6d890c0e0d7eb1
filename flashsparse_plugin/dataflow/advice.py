# SPDX-License-Identifier: Apache-2.0
"""What each way to store a model's linear layers should bring on a GPU: estimates, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..formats import get_format
from ..gpu import Gpu, library_seconds
from ..known_quality import DENSE, Quality, quality
from ..served import ModelShapes
from . import rivals
from .expected import DENSITIES, ESTIMATED, exact_schemes, sample, unstructured_schemes
from .experts import ExpertTimes, expert_times
from .model import Weight, best_seconds

Shape = tuple[int, int]
Kind = Literal["dense", "rival", "ours"]
Values = Literal[16, 8, 4]

MARGIN = ESTIMATED
MEASURED = ("H200", "H100")
WINDOW, LENGTH = 32, 32  # of vector-wise patterns
BESIDE_DENSE = 0.375, "2:4, 25% dense"  # zeros of 2:4 with a quarter of the blocks dense


@dataclass(frozen=True)
class Choice:
    """A way to store weights.

    Attributes:
        gpu: Where it is estimated.
        title: For people.
        kind: Dense in 16 bits, what others offer, or ours.
        values: Bits of a value: what it costs in quality goes by them and by the zeros.
        sparsity: Share of zeros that it needs.
        bits: A weight, in the memory of the GPU.
        seconds: Time of a product by shape and tokens, with x read and y written.
        is_checked: Whether its estimates were compared with measurements of ours.
        rule: Its zeros, as `known_quality` has them.
        type: Of its values, likewise.
        experts: What multiplies the experts of a mixture beside it: of ours a grouped kernel where
            the format has one, else vLLM's for dense ones.
    """

    gpu: Gpu
    title: str
    kind: Kind
    values: Values
    sparsity: float
    bits: float
    seconds: Callable[[Shape, int], float]
    is_checked: bool = True
    rule: str = DENSE
    type: str = "16 bits"
    experts: ExpertTimes = rivals.EXPERTS_16

    @property
    def is_trained_only(self) -> bool:
        """Whether rows share their zeros: nothing but training with the pattern bears that."""
        return ", L=" in self.rule

    @property
    def quality(self) -> Quality | None:
        """What is known of its cost; None: nothing."""
        return quality(self.rule, self.type)

    def total(self, shapes: ModelShapes, tokens: int) -> float:
        """Seconds of the linear layers and of the experts, without the output head."""
        linear = sum(count * self.seconds(shape, tokens) for shape, count in shapes.layers.items())
        return linear + self.experts_total(shapes, tokens)

    def experts_total(self, shapes: ModelShapes, tokens: int) -> float:
        """Seconds of the experts alone."""
        return sum(self.experts.seconds(each, tokens, self.gpu) for each in shapes.experts)

    def nbytes(self, shapes: ModelShapes) -> float:
        """Bytes of the linear layers and of the experts."""
        weights = sum(count * rows * columns for (rows, columns), count in shapes.layers.items())
        return (self.bits * weights + self.experts.bits * shapes.expert_parameters) / 8


def dense_choices(gpu: Gpu) -> list[Choice]:
    """What needs no zeros: 16 bits by the library, fp8 where the GPU has it, and int4."""

    def whole(own: Callable[[Shape, int, Gpu], float]) -> Callable[[Shape, int], float]:
        return lambda shape, tokens: (
            own(shape, tokens, gpu) + rivals.activation_seconds(shape, tokens, gpu)
        )

    hopper = gpu.name in MEASURED
    found = [Choice(gpu, "dense", "dense", 16, 0.0, 16.0, whole(library_seconds), hopper)]
    if gpu.capability >= rivals.FP8_CAPABILITY:
        fp8 = whole(rivals.fp8_seconds)
        own = rivals.EXPERTS_FP8
        found.append(Choice(gpu, "fp8", "rival", 8, 0.0, 8.0, fp8, hopper, DENSE, "fp8", own))
    marlin, bits, here = whole(rivals.marlin_seconds), rivals.MARLIN_BITS, gpu.name == "H200"
    own = rivals.EXPERTS_INT4
    found.append(Choice(gpu, "int4", "rival", 4, 0.0, bits, marlin, here, DENSE, "int4", own))
    return found


def sparse_choices(gpu: Gpu, sparsity: float) -> list[Choice]:
    """Our formats at a share of zeros: those that need no more zeros than that, or none.

    Args:
        gpu: What the estimates know of the device.
        sparsity: 0 to 1.
    """
    found = [
        sparse_choice(gpu, *each, 1 - sparsity)
        for each in (
            *((scheme.format.name, {}, 16) for scheme in exact_schemes()),
            *_unstructured(),
        )
    ]

    def add(pattern: dict[str, Any]) -> None:
        found.append(sparse_choice(gpu, "nm_vector", pattern, 16, 1 - sparsity))
        for codes, values in _codes(128):
            found.append(sparse_choice(gpu, "nm_vector", pattern | codes, values, 1 - sparsity))

    if sparsity >= 0.5:
        found.append(sparse_choice(gpu, "exact_nm", {"n": 2, "m": 4}, 16, 0.5))
        add({"n": 2, "m": 4})
    zeros, rule = BESIDE_DENSE
    if sparsity >= zeros:
        for codes, values in _codes(64):
            found.append(sparse_choice(gpu, "hybrid_24", codes, values, 1 - zeros, rule))
    kept = 4 * int((1 - sparsity) * WINDOW / 4 + 1e-9)  # kernels want multiples of 4
    if 0 < kept < WINDOW:
        add({"n": kept, "m": WINDOW, "vector_length": LENGTH})
    return found


def _codes(group: int) -> Iterator[tuple[dict[str, Any], Values]]:
    """Options of values, and their bits; `group`: columns that share a scale of int4."""
    yield {"values": "int8"}, 8
    yield {"values": "int4", "group": group}, 4


def _unstructured() -> Iterator[tuple[str, dict[str, Any], Values]]:
    """Formats of any zeros, their options, and the bits of a value."""
    for scheme in unstructured_schemes():
        yield scheme.format.name, {}, 16
        if scheme.format.takes_codes("int8", None):
            yield scheme.format.name, {"values": "int8"}, 8


def sparse_choice(
    gpu: Gpu,
    format: str,
    options: Mapping[str, Any],
    values: Values,
    density: float,
    rule: str | None = None,
) -> Choice:
    """One of our formats, as a GPU holds it.

    Args:
        gpu: What the estimates know of the device.
        format: Its name.
        options: Its options.
        values: Bits of a value.
        density: Share of the weights that are kept, where no pattern says so.
        rule: The zeros, as `known_quality` has them, where neither says what they are.
    """
    own = get_format(format)
    density = 1.0 if own.keeps_zeros else density
    stored = own.scheme(torch.bfloat16, dict(options))
    scheme = own.runtime(stored, torch.device("cuda"))
    bits, kept = sample(scheme, round(density, 6))

    anywhere = "n" not in options
    needed = 1 - density if anywhere else 1 - options["n"] / options["m"]

    def seconds(shape: Shape, tokens: int) -> float:
        nbytes = max(int(bits * shape[0] * shape[1] / 8), 1)
        found = best_seconds(Weight(shape, scheme, kept, nbytes), tokens, gpu)
        if not gpu.unverified:
            return found
        # Kernels are fitted to GPUs that accumulate in float32 at full speed. GeForce does at half,
        # and no kernel of ours has more of the tensor cores than the library there.
        operations = 2.0 * tokens * shape[0] * shape[1] * (1 - needed)
        return max(found, operations / gpu.arithmetic)

    told = stored.options.title.partition(" by ")[0]
    if rule is not None:
        title, checked = f"{rule}, {told}", gpu.name == "H200"
    elif anywhere:
        zeros = f"{needed:.0%}" if needed else ""
        title, checked = ", ".join(filter(None, (format, zeros, told))), gpu.name in MEASURED
        rule = f"{100 * needed:.4g}%" if needed else DENSE
    else:
        title, checked = told, gpu.name in MEASURED and (values > 4 or options["m"] == 4)
        rule = ", ".join(each for each in title.split(", ") if ":" in each or "L=" in each)
    of_values = options.get("values", "16 bits")
    return Choice(
        *(gpu, title, "ours", values, needed, bits, seconds, checked, rule, of_values),
        expert_times(scheme, bits),
    )


def wins_from(
    choices: Sequence[Choice], best: float, shapes: ModelShapes, tokens: int
) -> float | None:
    """The least share of zeros from which on a format is faster than something else.

    Args:
        choices: A format at rising shares of zeros.
        best: Seconds to be below, by `MARGIN`.
        shapes: Of the model.
        tokens: A batch.

    Returns:
        None where no choice is faster, else the least zeros such that all more zeros are faster.
    """
    found = None
    for choice in reversed(choices):
        if choice.total(shapes, tokens) * MARGIN > best:
            break
        found = choice.sparsity
    return found


def ladders(gpu: Gpu) -> Iterator[tuple[str, Values, list[Choice]]]:
    """Each of our formats at rising shares of zeros, for `wins_from`."""
    for name, options, bits in _unstructured():
        title = ", ".join((name, *options.values()))
        yield title, bits, [sparse_choice(gpu, name, options, bits, d) for d in DENSITIES]
    values: list[tuple[str, Values, dict[str, Any]]] = [
        ("16 bits", 16, {}),
        ("int8", 8, {"values": "int8"}),
        ("int4", 4, {"values": "int4", "group": 128}),
    ]
    for name, bits, more in values:
        own = {"m": WINDOW, "vector_length": LENGTH, **more}
        steps = [
            sparse_choice(gpu, "nm_vector", {"n": kept, **own}, bits, kept / WINDOW)
            for kept in range(WINDOW - 4, 0, -4)
        ]
        yield f"N:{WINDOW}, L={LENGTH}, {name}", bits, steps


@dataclass(frozen=True)
class Verdict:
    """Whether to use us for a batch, among values of some bits.

    Attributes:
        values: The least bits of a value that are accepted: 8 or 4.
        ours: The fastest of ours.
        rival: The fastest of the others.
        ratio: The rival's time / ours.
        lost: Shapes of layers on which the rival is not slower, where ours is faster as a whole.
        trained: The fastest of ours for models that were trained with a pattern of vectors, and the
            rival's time / its; None where it is not faster than `ours`.
    """

    values: Values
    ours: Choice
    rival: Choice
    ratio: float
    lost: tuple[Shape, ...]
    trained: tuple[Choice, float] | None = None

    @property
    def is_for_us(self) -> bool:
        """Whether ours is expected to be faster, beyond the error of the estimates."""
        return self.ratio >= MARGIN


def verdicts(choices: Sequence[Choice], shapes: ModelShapes, tokens: int) -> Iterator[Verdict]:
    """For values of 8 bits or more, and with those of 4, the fastest of ours beside the others'.

    What has fewer bits is compared with what has as few: 4 bits cost quality that 8 do not. A
    pattern that only training bears is never the best, but has a field of its own.
    """
    for bits in (8, 4):
        all_ours = [x for x in choices if x.kind == "ours" and x.values >= bits]
        others = [x for x in choices if x.kind != "ours" and x.values >= bits]
        ours = [x for x in all_ours if not x.is_trained_only]
        if not ours:
            continue

        def total(choice: Choice) -> float:
            return choice.total(shapes, tokens)

        best, rival = min(ours, key=total), min(others, key=total)
        lost = tuple(
            shape
            for shape in shapes.layers
            if rival.seconds(shape, tokens) < MARGIN * best.seconds(shape, tokens)
        )
        fastest, ratio = min(all_ours, key=total), total(rival) / total(best)
        trained = None if fastest is best else (fastest, total(rival) / total(fastest))
        if trained is not None and trained[1] < MARGIN * max(ratio, 1.0):
            trained = None
        yield Verdict(8 if bits == 8 else 4, best, rival, ratio, lost, trained)
