# SPDX-License-Identifier: Apache-2.0
"""Tables of implementations: what was measured or estimated, by weight.

What the user has measured is in the cache, one file a GPU and dtype; what was measured for the
package, or estimated, is in tables/, one file a class of GPUs (made by benchmarks/dataflow.py). A
table comes from a file that anyone may have written: it is validated as a whole before anything in
it is believed, and refused with a message that names the file, the rule and the remedy.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..cache import cache_directory, locked, write_whole
from ..files import read_bounded
from ..formats import find_form
from ..formats.registry import RETIRED
from ..gpu import Gpu, find_gpu
from ..messages import PrintableMessage, complaint
from ..names import DENSE
from ..packed import Scheme
from ..plan import Implementation, Plan
from . import model
from .model import Weight

logger = logging.getLogger(__name__)

VERSION: Final = 1
MAX_BYTES = 16 << 20  # of a file: some 50,000 entries
NEAREST_DENSITY = 0.05  # how far a measured density may be from that of the weight
SHIPPED = Path(__file__).parent / "tables"

Tokens = Annotated[int, Field(ge=1, le=1 << 20)]
Size = Annotated[int, Field(ge=1, lt=1 << 31)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TableError(PrintableMessage, ValueError):
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
    """A `plan.Range` in a file: an implementation and the most tokens that it is used for."""

    max_tokens: Tokens | None
    implementation: Name


class Measurement(_Strict):
    """What was measured for one number of tokens; for people and plots."""

    tokens: Tokens
    microseconds: dict[Name, Microseconds]


class Entry(_Strict):
    """The decision for one weight.

    Attributes:
        shape: (out_features, in_features).
        format: The format in which a GPU holds a packed weight, or "dense".
        options: Options of that format.
        density: Share of the elements that are kept.
        ranges: Rising; the last has no end.
        measurements: What the ranges follow from.
    """

    shape: tuple[Size, Size]
    format: Name = DENSE
    options: Annotated[dict[Name, Any], Field(max_length=20)] = {}
    density: Annotated[float, Field(ge=0, le=1)] = 1.0
    ranges: Annotated[list[Range], Field(min_length=1, max_length=16)]
    measurements: Annotated[list[Measurement], Field(max_length=100)] = []

    @model_validator(mode="after")
    def _check(self) -> Entry:
        known = self.implementations
        where = f"{self.shape[0]}x{self.shape[1]} {self.format}"
        ends = [each.max_tokens for each in self.ranges if each.max_tokens is not None]
        if self.ranges[-1].max_tokens is not None or len(ends) < len(self.ranges) - 1:
            raise ValueError(f"{where}: the last range, and no other, has max_tokens null")
        if any(a >= b for a, b in zip(ends, ends[1:], strict=False)):
            raise ValueError(f"{where}: max_tokens must rise from range to range")
        for each in self.ranges:
            if each.implementation not in known:
                raise ValueError(
                    f"{where}: {each.implementation!r} is not one of {', '.join(known)}"
                )
            most = known[each.implementation].most_tokens
            if most is not None and (each.max_tokens is None or each.max_tokens > most):
                raise ValueError(f"{where}: {each.implementation} takes up to {most} tokens")
        order = [list(known).index(each.implementation) for each in self.ranges]
        if any(a >= b for a, b in zip(order, order[1:], strict=False)):
            raise ValueError(f"{where}: each but once, in the order {', '.join(known)}")
        return self

    def scheme(self, dtype: torch.dtype | None = None) -> Scheme | None:
        """The scheme that the entry is about, in a dtype or any; None for a dense weight.

        Raises:
            FormatError: For a format or options that this release does not know.
        """
        if self.format == DENSE:
            return None
        format = find_form(self.format)
        return format.scheme(dtype or format.dtypes[-1], self.options)

    @property
    def implementations(self) -> Mapping[str, Implementation]:
        """What the ranges may name, in the order in which each is best as tokens grow."""
        named = {each.implementation for each in self.ranges}
        return model.implementations_of(self.scheme(), named)

    def plan(self, source: Literal["table", "shipped"] = "table", reason: str = "") -> Plan:
        ranges = ((each.max_tokens, each.implementation) for each in self.ranges)
        return Plan.of(ranges, source, reason)

    def seconds(self, tokens: int) -> float | None:
        """What the fastest implementation took for so many tokens, or for the next more measured.

        None where no time of so many tokens was kept.
        """
        found = [each for each in self.measurements if each.tokens >= tokens]
        nearest = min(found, key=lambda each: each.tokens, default=None)
        return None if nearest is None else min(nearest.microseconds.values()) * 1e-6

    @property
    def title(self) -> str:
        """Format and options, or "dense"."""
        scheme = self.scheme()
        return DENSE if scheme is None else scheme.title

    @property
    def key(self) -> tuple[Any, ...]:
        """What no two entries of a table share."""
        return self.shape, self.title, round(self.density, 3)


class Table(_Strict):
    """What was measured on one GPU in one dtype, or what the model estimates for it."""

    version: Literal[1] = VERSION
    source: Literal["measured", "model"] = "measured"
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    device: DeviceKey
    dtype: Literal["float16", "bfloat16"]
    entries: Annotated[list[Entry], Field(max_length=50_000)]

    @model_validator(mode="after")
    def _check(self) -> Table:
        seen = set()
        for entry in self.entries:
            if entry.key in seen:
                raise ValueError("two entries for {} {} at density {}".format(*entry.key))
            seen.add(entry.key)
        return self

    def find(self, weight: Weight) -> Entry | None:
        """The entry of exactly this shape, format and options whose density is near enough.

        Of several the nearest. Of a format of fixed size, such as 2:4, any density is.
        """
        title = DENSE if weight.scheme is None else weight.scheme.title
        near = [
            (abs(entry.density - weight.density), entry)
            for entry in self.entries
            if entry.shape == tuple(weight.shape) and entry.title == title
        ]
        distance, entry = min(near, key=lambda pair: pair[0], default=(1.0, None))
        if distance <= NEAREST_DENSITY or weight.scheme is None:
            return entry
        return entry if weight.scheme.format.is_fixed(weight.scheme) else None

    def seconds(self, weight: Weight, tokens: int) -> float | None:
        """`Entry.seconds` of a weight; None also where the table does not know it."""
        entry = self.find(weight)
        return None if entry is None else entry.seconds(tokens)

    @property
    def origin(self) -> str:
        """For people: "measured on an NVIDIA H200, 2026-11-20"."""
        if self.source == "model":
            return f"estimated by the model of an {self.device.name}"
        date = f", {self.date}" if self.date else ""
        return f"measured on an {self.device.name}{date}"

    def with_entries(self, entries: Iterable[Entry]) -> Table:
        """This table with entries added, each in the place of the one that it repeats."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return self.model_copy(update={"entries": list(merged.values())})


# ---- files --------------------------------------------------------------------------------------


def table_path(device: DeviceKey, dtype: str) -> Path:
    return cache_directory() / f"dataflow-{device.slug}-{dtype}.json"


def read_table(path: Path) -> Table:
    """Reads and validates a table.

    Raises:
        TableError: For a file that is too large, no JSON, of a later version, or breaks a rule.
    """
    if path.parent == SHIPPED:
        remedy = "It is a part of flashsparse-plugin: install that again"
    else:
        remedy = f"Remove {path}, or measure again with `flashsparse tune`"
    try:
        data = json.loads(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path} cannot be read as a table: {error}. {remedy}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise TableError(
            f"{path} is a table of version {version}; this version of flashsparse-plugin reads "
            f"version {VERSION}. Remedy: pip install -U flashsparse-plugin, or remove the file"
        )
    try:
        return Table.model_validate(_without_retired(data, path))
    except ValidationError as error:
        raise TableError(
            f"{path} is no valid table: {complaint(error)} "
            f"({error.error_count()} mistakes in all). {remedy}"
        ) from None


def _without_retired(data: Any, path: Path) -> Any:
    """What a file says, less entries of runtime forms that earlier releases had."""
    entries = data.get("entries") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        return data
    left = [each for each in entries if not _is_retired(each)]
    if len(left) < len(entries):
        logger.warning(
            "%s: %d entries are ignored, of forms that there are no longer (%s). `flashsparse "
            "tune` measures those layers anew",
            path,
            len(entries) - len(left),
            ", ".join(RETIRED),
        )
    return data | {"entries": left}


def _is_retired(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("format") in RETIRED


def text_of(table: Table) -> str:
    """A table as JSON, a line an entry; what has its default is left out."""
    about = table.model_dump(mode="json", exclude={"entries"}, exclude_none=True)
    entries = [entry.model_dump(mode="json", exclude_defaults=True) for entry in table.entries]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    return f'{json.dumps(about)[:-1]}, "entries": [\n{lines}\n]}}\n'


def write_table(table: Table, path: Path) -> None:
    """Writes a table; whoever reads it meanwhile sees the old one or the new one."""
    write_whole(path, text_of(table))
    _cached.cache_clear()


def add_to_table(entries: Iterable[Entry], key: DeviceKey, dtype: str) -> Path:
    """Adds entries to what the user has measured on a GPU in a dtype, one process at a time.

    Returns:
        The path of the table.

    Raises:
        TableError: Where there is a table that cannot be read; it stays as it is.
    """
    path = table_path(key, dtype)
    with locked(path.parent):
        empty = Table(device=key, dtype=dtype, entries=[])
        before = read_table(path) if path.exists() else empty
        write_table(before.with_entries(entries), path)
    return path


@lru_cache(maxsize=16)
def _cached(path: Path) -> Table | None:
    return read_table(path) if path.exists() else None


def read_own(key: DeviceKey, dtype: str) -> Table | None:
    """What the user has measured on such a GPU in a dtype, if anything.

    Raises:
        TableError: Where there is a table that cannot be read.
    """
    own = _cached(table_path(key, dtype))
    return own if own and (own.device, own.dtype) == (key, dtype) else None


def shipped_table(gpu: Gpu, key: DeviceKey | None = None) -> Table | None:
    """The table that the package brings for a class of GPUs, if there is one.

    Args:
        gpu: The class.
        key: A GPU of it. The class may hold other generations, too, whose kernels are others; such
            a GPU has no table.

    Raises:
        TableError: Where it is damaged, or was made for another class.
    """
    path = SHIPPED / f"{gpu.name.lower()}.json"
    table = _cached(path)
    if table and find_gpu(table.device.name, table.device.capability).name != gpu.name:
        raise TableError(
            f"{path} was made for an {table.device.name}, not for an {gpu.name}. It is a part of "
            "flashsparse-plugin: install that again"
        )
    if table and key and table.device.capability != key.capability:
        return None
    return table
