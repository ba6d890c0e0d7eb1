# SPDX-License-Identifier: Apache-2.0
"""unpack_checkpoint: a packed model directory to a dense one, one layer in memory at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashsparse_plugin

from ...formats import packed_names
from ...names import QUANT_METHOD
from ...pruning.layers import LayerReport, PruneReport
from ..card.model_card import write_pruned_card
from ..files.headers import CheckpointError, TensorInfo, read_header
from ..files.places import CONFIG
from ..hub.fetching import directory_of
from ..read.directory import ModelDirectory
from ..read.experts import Stack
from ..read.linears import Linear, StoredModel
from ..read.together import as_in_files, merged, whole_in_files
from ..write.room import disk_errors, require_room
from ..write.staging import Staging, identity
from ..write.surroundings import CARD, carry_files, name_shards, write_json
from ..write.writer import ShardWriter
from .settings import refuse_overlap
from .stored_packed import packed_config, read_packed
from .values import parse_size, same_bits

Progress = Callable[[int, int, str], None]


@dataclass
class UnpackReport:
    """What was unpacked.

    Attributes:
        source, out: The directories.
        schemes: How layers were packed, each with the number of such layers.
        zeros: The zeros of the layers that were packed.
        bytes_source, bytes_out: All tensors, before and after.
        rounded: Layers whose values had been rounded when they were packed: these are written.
        resumed_shards: Files that were kept from an interrupted run.
        warnings: What a user should know, a sentence each.
    """

    source: str
    out: str
    schemes: dict[str, int]
    bytes_source: int
    bytes_out: int = 0
    zeros: PruneReport = field(default_factory=lambda: PruneReport("", ()))
    rounded: int = 0
    resumed_shards: int = 0
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values for JSON."""
        return asdict(self) | {"zeros": self.zeros.to_dict()}


@dataclass(frozen=True)
class _Unit:
    """A tensor to write, and where it comes from: one that is carried over, or packed layers.

    Attributes:
        read: Yields it in parts along its first dimension.
        linears: The packed layers, as many for each part.
        matrices: Of a part, their weights, in order.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], Iterator[Tensor]]
    linears: Sequence[Linear] = ()
    matrices: Callable[[Tensor], Sequence[Tensor]] = lambda part: (part,)


_Read = tuple[torch.dtype, Callable[[], Tensor]]


def unpack_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    max_shard_size: int | str = "5GB",
    overwrite: bool = False,
    on_progress: Progress | None = None,
    name: str | None = None,
) -> UnpackReport:
    """Writes the dense model of a packed one: what `model.dequantize()` gives, bit for bit.

    Values that were rounded when they were packed stay the rounded ones. Everything written is read
    back and compared. A run that was killed is resumed by the same call.

    Args:
        source: Directory of a model that flashsparse packed; or, as a string, its name on the Hub.
        out: Directory to make; nothing is there before it is complete.
        max_shard_size: Bytes in one output file, as a number or like "5GB".
        overwrite: Replace `out` where it is a model directory.
        on_progress: Called with bytes done, bytes in all, and the tensor.
        name: What the model card calls the model; None: the name of `out`.

    Raises:
        CheckpointError: For a source that is not packed or is damaged, and an output that is not to
            be written.
        FormatError: For a packed layer that is not valid.
    """
    directory = ModelDirectory(directory_of(source))
    method = (directory.quantization or {}).get("quant_method")
    if method != QUANT_METHOD:
        state = "dense already" if method is None else f"quantized by {method!r}"
        raise CheckpointError(
            f"{directory.path} is {state}: only models that flashsparse packed are unpacked"
        )
    refuse_overlap(directory.path.resolve(), Path(out).resolve())
    units, report = _units(directory, Path(out))
    most, total = parse_size(max_shard_size), sum(unit.nbytes for unit in units)
    require_room(Path(out), total)
    job = {
        "tool": flashsparse_plugin.__version__,
        "unpack": identity(directory),
        "config": json.dumps(directory.config, sort_keys=True),
        "max_shard_bytes": most,
    }
    staging = Staging(out, job, overwrite)
    remedy = ". Make room: the same command goes on where it stopped"
    with disk_errors(staging.path, lambda: remedy), staging:
        run = _Run(units, staging, on_progress or (lambda *_: None), most)
        run.write()
        report.resumed_shards = run.resumed
        report.bytes_out = total
        report.zeros = PruneReport("", tuple(run.zeros))
        report.warnings += carry_files(directory, staging.path)
        rounded = f", {report.rounded} layers with rounded values" if report.rounded else ""
        facts = [f"| Unpacked from | {', '.join(report.schemes)}{rounded} |"]
        card = name or Path(out).name
        write_pruned_card(staging.path / CARD, directory, None, report.zeros, card, more=facts)
        name_shards(staging.path, staging.finished)
        config = {k: v for k, v in directory.config.items() if k != "quantization_config"}
        write_json(staging.path / CONFIG, config)
        staging.commit()
    return report


def _units(directory: ModelDirectory, out: Path) -> tuple[list[_Unit], UnpackReport]:
    """The tensors to write, in the order of the files, and a report of how they are packed."""
    config = packed_config(directory)
    packed = packed_names(directory.tensors)
    layer_of = {name: layer for layer, named in packed.items() for name in named.values()}
    stored = StoredModel(directory)
    linears = {x.stored: x for x in stored.linears if x.stored in packed}
    if lost := sorted(packed.keys() - linears.keys()):
        raise CheckpointError(f"layer {lost[0]!r} of {directory.path} is not one of its model")
    report = UnpackReport(str(directory.path), str(out), {}, directory.nbytes)
    units: dict[str, _Unit] = {}
    for name, info in directory.tensors.items():
        layer = layer_of.get(name)
        if layer is None:
            units[name] = _Unit(name, info.dtype, info.shape, info.nbytes, info.rows)
            continue
        stack = whole_in_files(stored, linears[layer].expert)
        if stack is not None and stack.parameter not in units:
            own = [
                x for x in linears.values() if x.expert and x.expert.parameter == stack.parameter
            ]
            read = [_read_by(directory, packed[x.stored or ""], x, config, report) for x in own]
            units[stack.parameter] = _experts_unit(stored, stack, own, read)
        elif stack is None and layer not in units:
            linear = linears[layer]
            dtype, read_one = _read_by(directory, packed[layer], linear, config, report)
            units[layer] = _packed_unit(linear, dtype, read_one)
    return list(units.values()), report


def _read_by(
    directory: ModelDirectory,
    named: Mapping[str, str],
    linear: Linear,
    config: Any,
    report: UnpackReport,
) -> _Read:
    """The dtype of a packed layer, and what unpacks it; counts it."""
    scheme = config.scheme_of(*linear.names)
    if scheme is None:
        raise CheckpointError(
            f"layer {linear.name!r} {list(linear.shape)} is packed, and config.json calls it "
            "dense: fetch the model again"
        )
    report.schemes[scheme.title] = report.schemes.get(scheme.title, 0) + 1
    report.rounded += not scheme.format.is_exact(scheme)

    return scheme.dtype, lambda: read_packed(directory, named, linear, config).unpack()


def _packed_unit(linear: Linear, dtype: torch.dtype, unpack: Callable[[], Tensor]) -> _Unit:
    def read() -> Iterator[Tensor]:
        yield linear.turned(unpack()).contiguous()

    nbytes = linear.shape[0] * linear.shape[1] * dtype.itemsize
    name, shape = f"{linear.stored}.weight", linear.shape_stored
    return _Unit(name, dtype, shape, nbytes, read, (linear,))


def _experts_unit(
    stored: StoredModel, stack: Stack, linears: Sequence[Linear], reads: Sequence[_Read]
) -> _Unit:
    """The tensor of all experts of a parameter, which the files of the family have in one."""
    name, shape, turned = as_in_files(stored, stack)
    sides, (dtype, _) = len(stack.projections), reads[0]

    def read() -> Iterator[Tensor]:
        for number in range(stack.experts):
            own = reads[number * sides : (number + 1) * sides]
            yield merged(stack, [unpack() for _, unpack in own], turned)

    def matrices(part: Tensor) -> Sequence[Tensor]:
        whole = part.transpose(1, 2) if turned else part
        return stack.layout.matrices(whole, sides)[0].unbind()

    nbytes = math.prod(shape) * dtype.itemsize
    return _Unit(name, dtype, shape, nbytes, read, linears, matrices)


class _Run:
    """Writes units into shards; those of an interrupted run are compared, as new ones are."""

    def __init__(
        self, units: list[_Unit], staging: Staging, on_progress: Progress, most: int
    ) -> None:
        self.units, self.staging, self.most = units, staging, most
        self.on_progress, self.done = on_progress, 0
        self.total = 2 * sum(unit.nbytes for unit in units)
        self.zeros: list[LayerReport] = []
        self.resumed = 0

    def write(self) -> None:
        position = self._resume()
        while position < len(self.units):
            shard = self._write_shard(position)
            if not self._is_as_read(shard, position):
                raise CheckpointError(
                    f"{self.staging.path / shard['file']} does not read back as it was written: "
                    "check disk and memory of this machine, then run again"
                )
            self.staging.add(shard)
            position = shard["end"]

    def _resume(self) -> int:
        position = 0
        for number, shard in enumerate(self.staging.finished):
            known = len(self.zeros)
            if not self._is_as_read(shard, position):
                del self.zeros[known:]
                self.staging.keep(number)
                break
            self._advance(position, shard["end"], "resuming")
            position = shard["end"]
        self.resumed = len(self.staging.finished)
        return position

    def _advance(self, start: int, end: int, what: str) -> None:
        self.done += sum(unit.nbytes for unit in self.units[start:end])
        self.on_progress(min(self.done, self.total), self.total, what)

    def _write_shard(self, start: int) -> dict[str, Any]:
        file, end = self.staging.next_name(), start
        rest = self.units[start:]
        writer = ShardWriter(self.staging.path / file, [unit.name for unit in rest])
        try:
            for unit in rest:
                if end > start and writer.nbytes + unit.nbytes > self.most:
                    break
                writer.add(unit.name, unit.dtype, unit.shape, unit.read())
                end += 1
                self._advance(end - 1, end, unit.name)
            digest = writer.close()
        except BaseException:
            writer.abort()
            raise
        tensors = {unit.name: unit.nbytes for unit in self.units[start:end]}
        shard = {"file": file, "digest": digest, "end": end, "tensors": tensors}
        return shard | {"rounded": 0, "layers": []}

    def _is_as_read(self, shard: Mapping[str, Any], start: int) -> bool:
        """Compares a file with what it was made of; counts the zeros of its layers on the way."""
        own = self.units[start : shard["end"]]
        header = {info.name: info for info in read_header(self.staging.path / shard["file"])}
        tensors = {unit.name: unit.nbytes for unit in own}
        if not own or header.keys() != tensors.keys() or shard["tensors"] != tensors:
            return False
        for number, unit in enumerate(own, start):
            if not self._is_same(unit, header[unit.name]):
                return False
            self._advance(number, number + 1, f"checking {unit.name}")
        return True

    def _is_same(self, unit: _Unit, written: TensorInfo) -> bool:
        if (written.dtype, written.shape) != (unit.dtype, unit.shape):
            return False
        if not unit.linears:
            pairs = zip(written.rows(), unit.read(), strict=True)
            return all(same_bits(found, wanted) for found, wanted in pairs)
        start, linears = 0, iter(unit.linears)
        for wanted in unit.read():
            for matrix, linear in zip(unit.matrices(wanted), linears, strict=False):
                zeros = matrix.numel() - int(matrix.count_nonzero())
                self.zeros.append(LayerReport(linear.name, linear.shape, zeros))
            if not same_bits(written.part(start, start + len(wanted)), wanted):
                return False
            start += len(wanted)
        return start == unit.shape[0]
