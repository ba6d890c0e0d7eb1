# SPDX-License-Identifier: Apache-2.0
"""What a conversion did, layer by layer: for people, for programs, for the model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class LayerReport:
    """One linear layer.

    Attributes:
        name: Name of the module.
        kind: What layers of one sort share, e.g. "q_proj".
        shape: (out_features, in_features).
        sparsity: Share of zeros; None where the layer has no weight of its own.
        bytes_dense: Bytes of the dense weight.
        bytes_packed: Bytes of the packed weight; None where it was not packed for comparison.
        reason: Why the layer is dense; None where it is packed.
        scheme: Format and options that the layer was packed by, or would be.
        bytes_alike: Bytes of the dense weight in the dtype of the packed values, with which those
            of the packed weight are compared.
        error: Of a weight that was rounded to codes, how far it is from the source: the norm of the
            difference over that of the source. None where every value was kept.
        others: Other formats that hold the weight as it is and need options for it, with these.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    sparsity: float | None
    bytes_dense: int
    bytes_packed: int | None = None
    reason: str | None = None
    scheme: str | None = None
    bytes_alike: int = 0
    error: float | None = None
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        return self.reason is None

    @property
    def known_sparsity(self) -> float:
        """The sparsity of a layer that has a weight of its own."""
        assert self.sparsity is not None, f"layer {self.name!r} has no weight of its own"
        return self.sparsity

    @property
    def known_bytes_packed(self) -> int:
        """The packed bytes of a layer that was packed, if only for comparison."""
        assert self.bytes_packed is not None, f"layer {self.name!r} was not packed"
        return self.bytes_packed

    @property
    def growth(self) -> int:
        """Bytes by which a layer is larger packed than dense; negative where it is smaller."""
        return self.known_bytes_packed - self.bytes_alike

    @property
    def bytes_written(self) -> int:
        """Bytes that the weight takes in the checkpoint."""
        packed = self.bytes_packed if self.is_packed else None
        return self.bytes_dense if packed is None else packed


@dataclass
class ConversionReport:
    """What `convert_checkpoint` did. Sizes are bytes of tensors.

    Attributes:
        source, out: The two directories.
        formats: Names of the packed formats.
        dtype: Dtype of the packed values.
        bytes_source, bytes_out: All tensors before and after.
        layers: The linear layers of the model.
        rounded_values: Values that a change of dtype changed.
        resumed_shards: Output shards kept from an interrupted run.
        warnings: What the user should know, one sentence each.
        choices: What `auto` chose and why, a line a kind of layer.
    """

    source: str
    out: str
    formats: list[str]
    dtype: str
    bytes_source: int
    bytes_out: int = 0
    layers: list[LayerReport] = field(default_factory=list)
    rounded_values: int = 0
    resumed_shards: int = 0
    warnings: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)

    @property
    def format(self) -> str:
        """The packed formats, for people."""
        return " and ".join(self.formats)

    @property
    def schemes(self) -> str:
        """The formats with their options, for people."""
        return schemes_of(self.packed) or self.format

    @property
    def packed(self) -> list[LayerReport]:
        return [layer for layer in self.layers if layer.is_packed]

    @property
    def sparsity(self) -> float | None:
        """Share of zeros over all packed layers."""
        return mean_sparsity(self.packed)

    @property
    def inexact(self) -> list[LayerReport]:
        """Packed layers whose values were rounded to codes, the farthest from its source first."""
        inexact = [layer for layer in self.packed if layer.error is not None]
        return sorted(inexact, key=lambda layer: -(layer.error or 0))

    @property
    def rounding(self) -> str | None:
        """What rounding to codes did, in one sentence; None where no layer was rounded."""
        if not self.inexact:
            return None
        schemes = " and ".join(sorted({str(layer.scheme) for layer in self.inexact}))
        errors = [layer.error or 0 for layer in self.inexact]
        return (
            f"the values of {len(errors)} layers were rounded to codes ({schemes}): the weights "
            f"are off by {sum(errors) / len(errors):.2%} on average, by {errors[0]:.2%} at most "
            f"({self.inexact[0].name})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain JSON values."""
        return {
            **asdict(self),
            "format": self.format,
            "layers": [
                {**asdict(x), "packed": x.is_packed, "shape": list(x.shape)} for x in self.layers
            ],
            "sparsity": self.sparsity,
        }


def schemes_of(layers: Iterable[Any]) -> str:
    """The schemes of some layers, that of most layers first: "nm_vector(2:4, int8)"."""
    return " and ".join(title for title, _ in counted_schemes(layers))


def counted_schemes(layers: Iterable[Any]) -> list[tuple[str, int]]:
    """The schemes of some layers, and how many layers each has; that of most layers first."""
    return Counter(layer.scheme for layer in layers if layer.scheme is not None).most_common()


def mean_sparsity(layers: Iterable[Any]) -> float | None:
    """Share of zeros over all weights of some layers, None where no layer has any."""
    known = [(x.shape[0] * x.shape[1], x.sparsity) for x in layers if x.sparsity is not None]
    weights = sum(count for count, _ in known)
    return sum(count * sparsity for count, sparsity in known) / weights if weights else None


def by_kind(layers: Iterable[Any]) -> dict[str, list[Any]]:
    """Groups layers by kind, in the order in which the kinds first appear."""
    groups: dict[str, list[Any]] = {}
    for layer in layers:
        groups.setdefault(layer.kind, []).append(layer)
    return groups


def told(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Tells why layers stay dense: one phrase a reason, with how many layers and the first."""
    groups: dict[str, list[str]] = {}
    for reason, name in reasons:
        # Layers that got too large differ in their sizes, which are after the colon.
        groups.setdefault(reason.partition(":")[0], []).append(name)
    return [
        f"{names[0]} {f'and {len(names) - 1} more ' if len(names) > 1 else ''}({reason})"
        for reason, names in groups.items()
    ]


def human(nbytes: float) -> str:
    """Returns a number of bytes for people, in powers of ten: "93.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
