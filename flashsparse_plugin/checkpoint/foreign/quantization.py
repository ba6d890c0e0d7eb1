# SPDX-License-Identifier: Apache-2.0
"""The `quantization_config` that compressed-tensors writes for a model with quantized weights.

It says in `config_groups` how the weights of which layers are quantized; what the tensors say
themselves is proven by the layouts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...formats.values.types import GROUPS
from ...matching import matches
from ...messages import complaint, one_line
from ...packed import FormatError
from .sparsity_config import METHODS, sparsity_format

FORMATS: Final = (
    "float-quantized",
    "int-quantized",
    "marlin-24",
    "mixed-precision",
    "naive-quantized",
    "pack-quantized",
)
"""What compressed-tensors calls the layouts that are read; mixed-precision is several of them."""

_ANYWHERE: Final = ("0:0", "unstructured")
"""Names of `sparsity_structure` for zeros without a pattern; llm-compressor's default is "0:0"."""
_MAX_GROUPS: Final = 256
_Names = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=4096)]


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Arguments(_Lenient):
    """How numbers are quantized: weights of some layers, or their activations."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    dynamic: bool | str = False
    actorder: bool | str | None = None

    @property
    def scope(self) -> str:
        """What has a scale of its own: "tensor", "channel", "group", or something else."""
        if self.strategy is not None:
            return self.strategy
        if self.group_size is None:
            return "tensor"
        return "group" if self.group_size > 0 else "channel"

    @property
    def group(self) -> int | None:
        """Columns that share a scale; None: all of them."""
        return self.group_size if self.scope == "group" else None

    @property
    def title(self) -> str:
        when = "dynamic" if self.dynamic else "static"
        zero = "" if self.symmetric else ", asymmetric"
        return f"{self.type}{self.num_bits} ({when}, by {self.scope}{zero})"

    def broken_rule(self) -> str | None:
        """Why weights that are quantized so are not read; None where they are."""
        if not self.symmetric:
            return "its codes are asymmetric, and only codes without a zero point are read"
        if self.actorder not in (None, False, "weight", "static"):
            return (
                f"its columns are reordered (actorder {self.actorder!r}), and groups must be of "
                "consecutive columns"
            )
        if (self.type, self.num_bits) not in (("float", 8), ("int", 8), ("int", 4)):
            return f"its codes are {self.type}{self.num_bits}, and float8, int8 and int4 are read"
        if self.scope not in ("tensor", "channel", "group"):
            return (
                f"its scales are by {self.scope}, and those by tensor, channel and group are read"
            )
        if self.group is not None and self.group not in GROUPS:
            known = f"{', '.join(map(str, GROUPS[:-1]))} and {GROUPS[-1]}"
            return f"its groups are {self.group} columns, and groups of {known} are read"
        return None


class _Group(_Lenient):
    targets: _Names
    weights: Arguments | None = None
    input_activations: Arguments | None = None
    output_activations: Arguments | None = None

    @property
    def rounds_tokens(self) -> bool:
        """Whether activations become codes of the weights' type, by a scale found for each token.

        That is what FP8-dynamic and W8A8 are; scales that were measured beforehand are not used.
        """
        x, weights = self.input_activations, self.weights
        return (
            x is not None
            and weights is not None
            and (x.type, x.num_bits) == (weights.type, weights.num_bits)
            and (x.dynamic, x.scope, x.symmetric) == (True, "token", True)
            and x.num_bits == 8
            and self.output_activations is None
        )


class Quantization(_Lenient):
    """What config.json says of quantized weights.

    Attributes:
        format: What compressed-tensors calls the layout.
        config_groups: By name, how the weights of which layers are quantized.
        kv_cache_scheme, transform_config: Truthy where caches are quantized or activations
            transformed, which is not read.
    """

    format: str = "dense"
    config_groups: Annotated[dict[str, _Group], Field(max_length=_MAX_GROUPS)]
    kv_cache_scheme: Any = None
    transform_config: Any = None
    sparsity_config: Any = None

    @classmethod
    def read(cls, quantization: Mapping[str, Any]) -> Quantization:
        """Reads a `quantization_config` of which `is_quantized` is true.

        Raises:
            FormatError: For one that is not valid, and for what is not read whatever the layer.
        """
        try:
            found = cls(**quantization)
        except ValidationError as error:
            raise FormatError(
                f"quantization_config of compressed-tensors: {complaint(error)}. Fetch the model "
                "again"
            ) from None
        rule = None
        if found.format not in FORMATS:
            rule = (
                f"weights in its format {found.format!r} are not read, but in {', '.join(FORMATS)}"
            )
        elif found.kv_cache_scheme:
            rule = "quantized caches (kv_cache_scheme) are not read"
        elif found.transform_config:
            rule = "transforms (transform_config) are not read"
        if rule is not None:
            raise FormatError(
                f"quantization_config of compressed-tensors: {rule}. Serve the checkpoint with "
                "vLLM alone, or start from the model before it was quantized"
            )
        return found

    def arguments_of(self, layer: str) -> Arguments:
        """How the weight of a layer is quantized.

        Args:
            layer: Its name in the file.

        Raises:
            FormatError: Where it is in no group, or quantized in a way that is not read.
        """
        group = self._group_of(layer)
        weights = None if group is None else group.weights
        rule = "no group of config.json means it" if weights is None else weights.broken_rule()
        if weights is None or rule is not None:
            raise FormatError(
                f"layer {layer!r} is quantized by compressed-tensors, and {rule}. Serve the "
                "checkpoint with vLLM alone, or start from the model before it was quantized"
            )
        return weights

    def rounds_tokens(self, layer: str) -> bool:
        """Whether activations of a layer are rounded as its weight is, by token."""
        group = self._group_of(layer)
        return group is not None and group.rounds_tokens

    def _group_of(self, layer: str) -> _Group | None:
        """The group of a layer: one that names it, else one that names classes ("Linear")."""
        found = None
        for group in self.config_groups.values():
            if group.weights is None:
                continue
            if _means(group.targets, layer):
                return group
            if found is None and any(each[:1].isupper() for each in group.targets):
                found = group
        return found

    @property
    def pattern(self) -> tuple[int, int] | None:
        """N and M of the zeros that the checkpoint says it has; None where it says nothing."""
        return pattern_of(self.model_dump())

    @property
    def notes(self) -> list[str]:
        """What a user should know of a model that is quantized so, one sentence each."""
        told = [
            f"Quantized by compressed-tensors ({self.format}): codes and scales stay as they are."
        ]
        if rounded := self._activations(rounded=True):
            told.append(
                f"Its weights were made for activations in {rounded}: they are rounded so, "
                "unless activations=native is asked for."
            )
        if others := self._activations(rounded=False):
            told.append(
                f"Its weights were made for activations in {others}; here activations "
                "are 16 bits, which is more exact."
            )
        if self._may_lack_codes():
            told.append(
                "compressed-tensors 0.14 drops codes of -128 from int8 weights that it writes as "
                "sparse-24-bitmask: where this model is worse than before it was compressed, "
                "compress it again with another format."
            )
        return [one_line(each) for each in told]

    def _may_lack_codes(self) -> bool:
        """Whether it was written by code that takes -128, whose absolute value overflows, for 0."""
        weights = [each.weights for each in self.config_groups.values() if each.weights]
        kinds = [(each.type, each.num_bits) for each in weights]
        return sparsity_format(self.model_dump()) == "sparse-24-bitmask" and ("int", 8) in kinds

    def _activations(self, rounded: bool) -> str:
        """Of the groups whose tokens are rounded, or of the others: what activations are there."""
        groups = [each for each in self.config_groups.values() if each.rounds_tokens == rounded]
        found = [each for x in groups for each in (x.input_activations, x.output_activations)]
        return " and ".join(dict.fromkeys(each.title for each in found if each is not None))


def _means(targets: Sequence[str], layer: str) -> bool:
    try:
        return matches(layer, targets)
    except ValueError as error:
        raise FormatError(f"targets in config_groups of compressed-tensors: {error}") from None


def is_quantized(quantization: object) -> bool:
    """Whether a `quantization_config` is compressed-tensors' for quantized weights."""
    if not isinstance(quantization, Mapping):
        return False
    method = quantization.get("quant_method") or METHODS[0]
    return method in METHODS and bool(quantization.get("config_groups"))


def has_idle_sparsity(quantization: object) -> bool:
    """Whether a `sparsity_config` beside quantized weights says nothing that their reader needs.

    Releases of llm-compressor wrote one for any model with some zeros. `"format": "dense"` is no
    layout: the tensors are those of a quantized model.
    """
    return (
        isinstance(quantization, Mapping)
        and is_quantized(quantization)
        and sparsity_format(quantization) == "dense"
    )


def kinds_of_codes(quantization: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """Value types of codes, and the columns that share a scale, of all groups of config.json.

    Of a `quantization_config` that cannot be read there are none.
    """
    try:
        groups = Quantization.read(quantization).config_groups.values()
    except FormatError:
        return []
    found = (each.weights for each in groups if each.weights is not None)
    return [(f"{each.type}{each.num_bits}", each.group) for each in found]


def has_zeros_anywhere(quantization: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` tells of zeros that follow no pattern."""
    structure = _told_of_zeros(quantization, "sparsity_structure")
    return structure in _ANYWHERE or sparsity_format(quantization) == "sparse-bitmask"


def share_of_zeros(quantization: Mapping[str, Any]) -> float:
    """The share of zeros that a `quantization_config` tells of; 0 where it tells of none."""
    share = _told_of_zeros(quantization, "global_sparsity")
    return float(share) if isinstance(share, (int, float)) else 0.0


def _told_of_zeros(quantization: Mapping[str, Any], key: str) -> object:
    sparsity = quantization.get("sparsity_config")
    return sparsity.get(key) if isinstance(sparsity, Mapping) else None


def pattern_of(quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    """N and M of the zeros that a `quantization_config` tells of; None where it tells of none."""
    if quantization.get("format") == "marlin-24":
        return 2, 4
    if sparsity_format(quantization) == "sparse-24-bitmask":
        return 2, 4
    structure = _told_of_zeros(quantization, "sparsity_structure")
    found = re.fullmatch(r"(\d{1,3}):(\d{1,3})", structure) if isinstance(structure, str) else None
    if found is None or not 0 < int(found[1]) < int(found[2]) <= 256:
        return None
    return int(found[1]), int(found[2])
