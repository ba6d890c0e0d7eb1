# SPDX-License-Identifier: Apache-2.0
"""Tables of measured implementations, one file a GPU and dtype, and the decision for a weight.

A table comes from a file that anyone may have written: it is validated as a whole before anything
in it is believed, and refused with a message that names the file, the rule and the remedy.
"""

from __future__ import annotations

import bisect
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from . import model
from .model import Weight

logger = logging.getLogger(__name__)

VERSION = 1
MAX_BYTES = 16 << 20  # of a file: some 50,000 entries
NEAREST_DENSITY = 0.05  # how far a measured density may be from that of the weight
CACHE = "FLASHSPARSE_CACHE"

Tokens = Annotated[int, Field(ge=1, le=1 << 20)]
Size = Annotated[int, Field(ge=1, lt=1 << 31)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TableError(ValueError):
    """A table that cannot be read; the message names the file, what is wrong, and the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DeviceKey(_Strict):
    """What a measurement holds for."""

    name: Name
    capability: tuple[Annotated[int, Field(ge=0, le=99)], Annotated[int, Field(ge=0, le=99)]]
    multiprocessors: Annotated[int, Field(ge=1, le=10000)]

    @classmethod
    def of(cls, device: torch.device) -> DeviceKey:
        found = torch.cuda.get_device_properties(device)
        return cls(
            name=found.name,
            capability=(found.major, found.minor),
            multiprocessors=found.multi_processor_count,
        )

    @property
    def slug(self) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return f"sm{self.capability[0]}{self.capability[1]}-{self.multiprocessors}-{name}"


class Range(_Strict):
    """An implementation and the most tokens that it is used for; None: all that are left."""

    max_tokens: Tokens | None
    implementation: Name


class Measurement(_Strict):
    """What was measured for one number of tokens; for people and plots."""

    tokens: Tokens
    microseconds: dict[Name, Microseconds]


class Entry(_Strict):
    """The decision for one weight."""

    shape: tuple[Size, Size]
    format: Name = "dense"
    density: Annotated[float, Field(ge=0, le=1)] = 1.0
    ranges: Annotated[list[Range], Field(min_length=1, max_length=16)]
    measurements: Annotated[list[Measurement], Field(max_length=100)] = []

    @model_validator(mode="after")
    def _check(self) -> Entry:
        known = model.implementations_of(self.format)
        where = f"{self.shape[0]}x{self.shape[1]} {self.format}"
        ends = [each.max_tokens for each in self.ranges]
        if ends[-1] is not None or None in ends[:-1]:
            raise ValueError(f"{where}: the last range, and no other, has max_tokens null")
        if any(a >= b for a, b in zip(ends, ends[1:-1], strict=False)):
            raise ValueError(f"{where}: max_tokens must rise from range to range")
        for each in self.ranges:
            if each.implementation not in known:
                raise ValueError(f"{where}: {each.implementation!r} is none of {', '.join(known)}")
            most = known[each.implementation]
            if most is not None and (each.max_tokens is None or each.max_tokens > most):
                raise ValueError(f"{where}: {each.implementation} takes up to {most} tokens")
        return self


class Table(_Strict):
    """What was measured on one GPU in one dtype."""

    version: Literal[1] = VERSION
    device: DeviceKey
    dtype: Literal["float16", "bfloat16"]
    entries: Annotated[list[Entry], Field(max_length=50_000)]

    @model_validator(mode="after")
    def _check(self) -> Table:
        seen = set()
        for entry in self.entries:
            key = _key(entry)
            if key in seen:
                raise ValueError(f"two entries for {key[0]} {key[1]} at density {key[2]}")
            seen.add(key)
        return self

    def find(self, weight: Weight) -> Entry | None:
        """The entry of exactly this shape and format whose density is nearest, and near enough."""
        near = [
            (abs(entry.density - weight.density), entry)
            for entry in self.entries
            if entry.shape == tuple(weight.shape) and entry.format == weight.format
        ]
        distance, entry = min(near, key=lambda pair: pair[0], default=(1.0, None))
        return entry if distance <= NEAREST_DENSITY else None

    def with_entries(self, entries: Iterable[Entry]) -> Table:
        """This table with entries added, each in the place of the one that it repeats."""
        merged = {_key(entry): entry for entry in (*self.entries, *entries)}
        return self.model_copy(update={"entries": list(merged.values())})


def _key(entry: Entry) -> tuple[tuple[int, int], str, float]:
    return entry.shape, entry.format, round(entry.density, 3)


# ---- files --------------------------------------------------------------------------------------


def cache_directory() -> Path:
    """FLASHSPARSE_CACHE, or the user's cache directory."""
    if found := os.environ.get(CACHE):
        return Path(found).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashsparse"


def table_path(device: DeviceKey, dtype: str) -> Path:
    return cache_directory() / f"dataflow-{device.slug}-{dtype}.json"


def read_table(path: Path) -> Table:
    """Reads and validates a table.

    Raises:
        TableError: For a file that is too large, no JSON, of a later version, or breaks a rule.
    """
    remedy = f"Remove {path}, or measure again with `flashsparse tune`"
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        data = json.loads(text) if len(text) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path} cannot be read as a table: {error}. {remedy}") from None
    if len(text) > MAX_BYTES:
        raise TableError(f"{path} is larger than any table ({MAX_BYTES >> 20} MB). {remedy}")
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise TableError(
            f"{path} is a table of version {version}; this version of flashsparse-plugin reads "
            f"version {VERSION}. Remedy: pip install -U flashsparse-plugin, or remove the file"
        )
    try:
        return Table.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise TableError(
            f"{path} is no valid table: {f'{place}: ' if place else ''}{first['msg']} "
            f"({error.error_count()} mistakes in all). {remedy}"
        ) from None


def write_table(table: Table, path: Path) -> None:
    """Writes a table; whoever reads it meanwhile sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table.model_dump(mode="json"), indent=1)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text + "\n")
    os.replace(file.name, path)
    _cached.cache_clear()


@lru_cache(maxsize=16)
def _cached(path: Path) -> Table | None:
    return read_table(path) if path.exists() else None


# ---- the decision -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataflow:
    """Which implementation a weight is multiplied by, for any number of tokens.

    Attributes:
        ranges: Rising; the last has no end.
        source: "table" (measured), "model" (estimated) or "device" (there is nothing to choose).
        reason: One sentence for people.
    """

    ranges: tuple[Range, ...]
    source: Literal["table", "model", "device"]
    reason: str

    def implementation(self, tokens: int) -> str:
        """The name of the implementation for a number of tokens."""
        return self.ranges[bisect.bisect_left(self._ends, tokens)].implementation

    @cached_property
    def _ends(self) -> list[int]:
        return [each.max_tokens for each in self.ranges[:-1]]


def ranges_of(
    found: Mapping[int, Mapping[str, float]], implementations: Mapping[str, int | None]
) -> list[Range]:
    """The ranges that follow from times.

    Args:
        found: Seconds of the implementations, by tokens.
        implementations: `Weight.implementations`: names in order, and the most tokens of each.
    """
    names, tokens = list(implementations), sorted(found)
    begins = [tokens[0], *model.inflections(found, names), tokens[-1] + 1]
    used = [name for i, name in enumerate(names) if begins[i] < begins[i + 1]]
    ranges = []
    for name, following in zip(used, [*used[1:], None], strict=True):
        # Between two numbers of tokens that were looked at, as far as the kernel goes.
        ends = [begins[names.index(following)] - 1, implementations[name]] if following else [None]
        end = min((each for each in ends if each is not None), default=None)
        ranges.append(Range(max_tokens=end, implementation=name))
    return ranges


_told: set[str] = set()


def resolve(weight: Weight, dtype: torch.dtype, device: torch.device | str) -> Dataflow:
    """Decides once, when a layer is loaded, what will multiply it. Logs a new reason once.

    Args:
        weight: The layer's weight.
        dtype: float16 or bfloat16.
        device: Where the layer is.

    Raises:
        TableError: Where there is a table for this GPU that cannot be read.
    """
    found = _decide(weight, str(dtype).removeprefix("torch."), torch.device(device))
    if found.reason not in _told:
        _told.add(found.reason)
        logger.info("dataflow: %s", found.reason)
    return found


def _decide(weight: Weight, dtype: str, device: torch.device) -> Dataflow:
    if device.type != "cuda":
        # torch's own linear for any number of tokens, or the format's own kernels.
        name = "library" if weight.format == "dense" else "sparse"
        only = Range(max_tokens=None, implementation=name)
        return Dataflow((only,), "device", f"on {device.type} every layer has one implementation")
    key = DeviceKey.of(device)
    path = table_path(key, dtype)
    table = _cached(path)
    entry = table.find(weight) if table and table.device == key and table.dtype == dtype else None
    if entry is not None:
        return Dataflow(tuple(entry.ranges), "table", f"{weight}: measured, in {path}")
    gpu = model.find_gpu(key.name, key.capability)
    lacking = "it has no entry of this shape and density" if table else "there is no such file"
    return Dataflow(
        tuple(ranges_of(model.times(weight, gpu), weight.implementations)),
        "model",
        f"{weight}: estimated by the model of an {gpu.name}, as {path} was asked and {lacking}; "
        "`flashsparse tune` measures",
    )
