# SPDX-License-Identifier: Apache-2.0
"""convert_checkpoint: a dense model directory to a packed one, one layer in memory at a time."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashsparse_plugin

from ..config import FlashSparseConfig, LayerConfig
from ..formats import format_names, get_format
from ..formats.values import cast, count_changed, packable_dtype
from ..messages import printable
from ..names import DENSE
from ..packed import FormatError, PackedWeight, Scheme, dtype_name
from .advice import nothing_packed, warnings_about
from .card import write_card
from .checksums import checksum
from .decision import reason_not_to_pack, reason_of_size
from .foreign.code_entries import CodesInfo
from .headers import read_header
from .keeping import keep_codes, target_of
from .linears import Linear, StoredModel
from .reader import CONFIG, CheckpointError, ModelDirectory, TensorInfo
from .report import ConversionReport, LayerReport, human
from .room import disk_errors, require_room
from .settings import Settings, refuse_overlap, refuse_quantized, settings_of
from .staging import Staging, identity, part_name
from .stored import Checkpoint
from .surroundings import CARD, carry_files, name_shards, write_json
from .values import relative_error, same_bits, same_bits_but_zero_sign
from .writer import ShardWriter

logger = logging.getLogger(__name__)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is done now."""


def convert_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    layers: Mapping[str, Mapping[str, Any]] | None = None,
    dtype: torch.dtype | str | None = None,
    ignore: Sequence[str] = ("lm_head",),
    pack_all: bool = False,
    max_shard_size: int | str = "5GB",
    overwrite: bool = False,
    on_progress: Progress | None = None,
    name: str | None = None,
) -> ConversionReport:
    """Packs the linear layers of a pruned model and writes it as a new model directory.

    Peak memory is about one layer, dense and packed, whatever the size of the model. Every tensor
    is read back from disk and compared with the source before the output appears. A run that was
    killed is resumed by the same call.

    Args:
        source: Model directory with safetensors weights that are dense, with zeros.
        out: Directory to make; nothing is there before it is complete.
        format: Packed format, one of `format_names()`; None: the default, or the one that holds the
            codes of a model that another tool quantized.
        options: Options of the format (nm_vector: n, m, vector_length, values, group).
        layers: Layers that differ, by name: `{"format": ..., "options": ..., "dtype": ...}`, as in
            FlashSparseConfig. Stronger than `ignore`.
        dtype: A dtype of the format, such as float16 or bfloat16, for all matrices; vectors (norms,
            biases) keep theirs. None keeps every tensor as it is, but for layers whose dtype the
            format does not take (float32), which are rounded to be packed, to the dtype in
            config.json or else bfloat16; a warning counts the values.
        ignore: Layers to leave dense: names, or patterns after "re:".
        pack_all: Pack also those layers that are larger packed than dense.
        max_shard_size: Bytes in one output file, as a number or like "5GB".
        overwrite: Replace `out` where it is a model directory.
        on_progress: Called as the work goes on.
        name: What the model card calls the model, such as "org/name"; None: the name of `out`.

    Returns:
        What was done, layer by layer.

    Raises:
        CheckpointError: For a source that cannot be read or packed, an output that is not to be
            written, and a written tensor that does not read back as it should.
        FormatError: For a format or options that there are not.
    """
    directory = ModelDirectory(source)
    refuse_quantized(directory)
    format, options = target_of(directory, format, options)
    settings = settings_of(format, options, layers, dtype, ignore, pack_all, max_shard_size)
    directory = directory.with_weights(settings.dtype)
    conversion = _Conversion(
        directory,
        StoredModel(directory),
        settings,
        on_progress or (lambda done, total, what: None),
        name,
    )
    refuse_overlap(directory.path.resolve(), Path(out).resolve())
    require_room(Path(out))
    with (
        Staging(out, conversion.job(), overwrite) as staging,
        disk_errors(staging.path, lambda: conversion.rest(staging)),
    ):
        return conversion.run(staging)


class _Conversion:
    def __init__(
        self,
        directory: ModelDirectory,
        stored: StoredModel,
        settings: Settings,
        on_progress: Progress,
        name: str | None,
    ):
        self.directory, self.settings, self.stored = directory, settings, stored
        self.name = name
        linears = self.linears = stored.linears
        self.linear_of = {f"{x.stored}.weight": x for x in linears if x.stored is not None}
        keep_codes(settings.config, linears, directory.tensors)
        self.reasons = {x.name: reason_not_to_pack(x, settings.config) for x in linears}
        self._refuse_unknown_layers()
        self.rounded_unasked = self._choose_dtype()
        self.schemes: dict[str, Scheme] = {}  # of the layers that are to be packed
        for linear in linears:
            if self.reasons[linear.name] is None:
                scheme = settings.config.scheme_of(linear.name)
                assert scheme is not None  # a layer that is configured as dense has a reason
                self.schemes[linear.name] = scheme
        self.tensors = list(directory.tensors.values())
        self.on_progress, self.done = on_progress, 0
        self.total = 2 * sum(info.nbytes for info in self.tensors)
        assert settings.config.dtype is not None  # _choose_dtype settled it
        self.report = ConversionReport(
            str(directory.path),
            "",
            settings.config.formats,
            settings.config.dtype,
            directory.nbytes,
        )

    def job(self) -> dict[str, Any]:
        """What a resumed run must agree on."""
        settings = self.settings
        config = json.dumps(self.directory.config, sort_keys=True).encode()
        return {
            "tool": flashsparse_plugin.__version__,
            "files": identity(self.directory),
            "config": hashlib.sha256(config).hexdigest(),
            "packing": settings.config.to_dict(),
            "dtype": settings.dtype and dtype_name(settings.dtype),
            "pack_all": settings.pack_all,
            "max_shard_bytes": settings.max_shard_bytes,
        }

    def rest(self, staging: Staging) -> str:
        """What a run that found no space tells: how much it needs, and that it goes on."""
        position = staging.finished[-1]["end"] if staging.finished else 0
        nbytes = sum(info.nbytes for info in self.tensors[position:])
        return (
            f", which keeps what is done: the rest needs up to {human(nbytes)}. Make room and run "
            "the same command, which goes on from there"
        )

    def run(self, staging: Staging) -> ConversionReport:
        self.report.out = str(staging.out)
        position = self._resume(staging)
        self.report.resumed_shards = len(staging.finished)
        while position < len(self.tensors):
            shard = self._write_shard(staging, position)
            self._verify_shard(staging.path / shard["file"], position, shard)
            staging.add(shard)
            position = shard["end"]
        self._summarize(staging.finished)
        try:
            if not self.report.packed:
                raise CheckpointError(nothing_packed(self.report))
            self._check_loading(staging)
        except CheckpointError:
            staging.discard()
            raise
        self._write_surroundings(staging)
        staging.commit()
        for warning in self.report.warnings:
            logger.warning("%s", printable(warning))
        return self.report

    def _resume(self, staging: Staging) -> int:
        """Keeps the shards of an earlier run that are what its state says; returns where they end.

        They are compared with the source, as what was just written is.
        """
        position = 0
        for number, shard in enumerate(staging.finished):
            done = self.done
            if not self._is_as_claimed(staging.path / shard["file"], position, shard):
                logger.warning("%s is not what its state says: written again", shard["file"])
                staging.keep(number)
                self.done = done
                break
            position = shard["end"]
        self._advance(sum(info.nbytes for info in self.tensors[:position]), "resuming")
        return position

    def _advance(self, nbytes: int, what: str) -> None:
        self.done += nbytes
        self.on_progress(self.done, self.total, what)

    # Writing

    def _write_shard(self, staging: Staging, start: int) -> dict[str, Any]:
        """Writes the tensors from number `start` on until the shard is full."""
        file = part_name(len(staging.finished) + 1)
        rest = self.tensors[start:]
        writer = ShardWriter(staging.path / file, self._names(rest))
        layers: list[LayerReport] = []
        tensors: dict[str, int] = {}
        rounded, end = 0, start
        try:
            for info in rest:
                planned = info.nbytes
                packed, layer = self._pack(info)
                if packed is not None:
                    planned = packed.nbytes
                if tensors and writer.nbytes + planned > self.settings.max_shard_bytes:
                    break
                if packed is None:
                    dtype = self._carried_dtype(info)
                    nbytes = writer.nbytes
                    rounded += self._carry(writer, info, dtype)
                    tensors[info.name] = writer.nbytes - nbytes
                else:
                    rounded += sum(count_changed(part, packed.dtype) for part in info.rows())
                    for own, tensor in packed.tensors.items():
                        name, seal = (
                            f"{info.name.removesuffix('weight')}{own}",
                            checksum(packed, own),
                        )
                        writer.add(name, tensor.dtype, tuple(tensor.shape), [tensor], seal)
                        tensors[name] = tensor.nbytes
                if layer is not None:
                    layers.append(layer)
                del packed
                end += 1
                self._advance(info.nbytes, info.name)
            digest = writer.close()
        except BaseException:
            writer.abort()
            raise
        return {
            "file": file,
            "digest": digest,
            "end": end,
            "tensors": tensors,
            "rounded": rounded,
            "layers": [asdict(layer) for layer in layers],
        }

    def _names(self, infos: Sequence[TensorInfo]) -> Iterator[str]:
        for info in infos:
            yield info.name
            if info.name in self.linear_of:
                scheme = self.schemes.get(self.linear_of[info.name].name)
                for name in scheme.format.tensor_names if scheme else ():
                    yield f"{info.name.removesuffix('weight')}{name}"

    def _pack(self, info: TensorInfo) -> tuple[PackedWeight | None, LayerReport | None]:
        """Packs a tensor where it is a weight to be packed, and tells about it where it is one."""
        layer = self._layer(info)
        if layer is None or layer.reason is not None:
            return None, layer
        scheme = self.schemes[layer.name]
        try:
            packed, weight = self._pack_by(scheme, info)
        except FormatError as error:
            raise CheckpointError(
                f"layer {layer.name!r} {list(layer.shape)} cannot be packed to {scheme.title}: "
                f"{error}. Leave it dense with --ignore {layer.name} (ignore=), or choose another "
                "format or options"
            ) from None
        if weight is not None and not scheme.format.is_exact(scheme):
            layer.error = relative_error(packed.unpack(), weight)
        self._judge(layer, packed.nbytes)
        return (packed if layer.is_packed else None), layer

    def _pack_by(self, scheme: Scheme, info: TensorInfo) -> tuple[PackedWeight, Tensor | None]:
        """Packs a weight; gives it dense, too, unless its codes were packed as they are."""
        if isinstance(info, CodesInfo) and not scheme.format.is_exact(scheme):
            return info.pack(scheme), None
        weight = self.linear_of[info.name].turned(_cast(info.read(), scheme.dtype, info.name))
        return scheme.format.pack(weight, scheme), weight

    def _layer(self, info: TensorInfo) -> LayerReport | None:
        """What is known of a layer before it is packed; None where the tensor is no weight."""
        linear = self.linear_of.get(info.name)
        if linear is None:
            return None
        bytes_dense = info.nbytes // info.dtype.itemsize * self._carried_dtype(info).itemsize
        sparsity = None
        if info.dtype in _FLOATS:
            kept = sum(int(part.count_nonzero()) for part in info.rows())
            sparsity = 1 - kept / (info.shape[0] * info.shape[1])
        reason = self.reasons[linear.name]
        layer = LayerReport(
            linear.name, linear.kind, linear.shape, sparsity, bytes_dense, None, reason
        )
        if reason is None:
            layer.others = self._others(linear, info)
        return layer

    def _others(self, linear: Linear, info: TensorInfo) -> dict[str, dict[str, Any]]:
        """Formats with options, other than the layer's own, that hold its weight as it is."""
        weight, own = linear.turned(info.read()), self.schemes[linear.name].format.name
        found = {name: get_format(name).options_for(weight) for name in format_names()}
        return {name: dict(each) for name, each in found.items() if each and name != own}

    def _judge(self, layer: LayerReport, nbytes: int) -> None:
        """Notes how large a layer is packed, and gives it a reason to stay dense if too large."""
        scheme, (rows, columns) = self.schemes[layer.name], layer.shape
        layer.bytes_packed, layer.scheme = nbytes, scheme.title
        layer.bytes_alike = rows * columns * scheme.dtype.itemsize
        if not self.settings.pack_all:
            layer.reason = reason_of_size(nbytes, layer.bytes_alike, layer.known_sparsity)

    def _carry(self, writer: ShardWriter, info: TensorInfo, dtype: torch.dtype) -> int:
        """Copies a tensor into the shard as it is, or cast; returns how many values changed."""
        changed = 0

        def parts() -> Iterator[Tensor]:
            nonlocal changed
            for part in info.rows():
                changed += count_changed(part, dtype)
                yield _cast(part, dtype, info.name)

        writer.add(info.name, dtype, info.shape, parts())
        return changed

    def _carried_dtype(self, info: TensorInfo) -> torch.dtype:
        wanted = self.settings.dtype
        if wanted is None or info.dtype not in _FLOATS or len(info.shape) < 2:
            return info.dtype
        return wanted

    # Verifying

    def _verify_shard(self, path: Path, position: int, shard: Mapping[str, Any]) -> None:
        """Reads a finished shard back and compares it, tensor by tensor, with the source."""
        header = {written.name: written for written in read_header(path)}
        for info in self.tensors[position : shard["end"]]:
            written = header.get(info.name)
            if written is not None:
                dtype = self._carried_dtype(info)
                same = (written.dtype, written.shape) == (dtype, info.shape) and all(
                    same_bits(part, _cast(other, dtype, info.name))
                    for part, other in zip(written.rows(), info.rows(), strict=True)
                )
            else:
                same = self._packed_is_same(header, info)
            if not same:
                raise CheckpointError(
                    f"tensor {info.name!r} {list(info.shape)} does not read back from {path} as "
                    "it was written: check disk and memory of this machine, then run again"
                )
            self._advance(info.nbytes, f"checking {info.name}")

    def _is_as_claimed(self, path: Path, start: int, shard: Mapping[str, Any]) -> bool:
        """Whether a shard of an earlier run is what its entry in the state says.

        It holds the source's tensors from number `start` on, packed where they are to be, and what
        the entry says of layers is so. Only the packed size of a layer that stayed dense for it
        and the error of codes are taken as they are.
        """
        names: set[str] = set()
        layers, rounded = [], 0
        claimed = {layer["name"]: layer for layer in shard["layers"]}
        for info in self.tensors[start : shard["end"]]:
            layer, dtype, own = self._layer(info), self._carried_dtype(info), {info.name}
            if layer is not None:
                if layer.reason is None and layer.name in claimed:
                    layer.error = claimed[layer.name]["error"]
                    self._judge(layer, claimed[layer.name]["bytes_packed"] or 0)
                if layer.is_packed:
                    dtype, own = self.schemes[layer.name].dtype, {*self._names([info])} - own
                    if layer.bytes_packed != sum(shard["tensors"].get(name, 0) for name in own):
                        return False
                layers.append(asdict(layer))
            names |= own
            rounded += sum(count_changed(part, dtype) for part in info.rows())
        try:
            written = {info.name: info.nbytes for info in read_header(path)}
            if written != shard["tensors"] or written.keys() != names:
                return False
            self._verify_shard(path, start, shard)
        except FormatError:
            return False
        known = (layers, rounded) == (shard["layers"], shard["rounded"])
        return known and start < shard["end"] <= len(self.tensors)

    def _packed_is_same(self, header: Mapping[str, TensorInfo], info: TensorInfo) -> bool:
        linear = self.linear_of[info.name]
        scheme = self.schemes[linear.name]
        prefix = info.name.removesuffix("weight")
        infos = {
            name: header[prefix + name] for name in scheme.format.tensors(scheme, linear.shape)
        }
        packed = PackedWeight(scheme, linear.shape, {n: each.read() for n, each in infos.items()})
        if any(each.checksum != checksum(packed, name) for name, each in infos.items()):
            return False
        packed.validate(linear.name)
        if not scheme.format.is_exact(scheme):
            if isinstance(info, CodesInfo):
                again = info.pack(scheme).tensors
                return all(torch.equal(again[name], each) for name, each in packed.tensors.items())
            source = linear.turned(_cast(info.read(), scheme.dtype, info.name))
            rounded = scheme.format.rounded(source, packed)
            return same_bits_but_zero_sign(packed.unpack(), rounded)
        weight = linear.turned(packed.unpack())
        start = 0
        for part in info.rows():
            part = _cast(part, scheme.dtype, info.name)
            if not same_bits_but_zero_sign(weight[start : start + len(part)], part):
                return False
            start += len(part)
        return start == len(weight)

    def _check_loading(self, staging: Staging) -> None:
        """Has the written files placed in the model, by their headers, as loading will."""
        model = self.stored.model
        written = {
            info.name: info
            for shard in staging.finished
            for info in read_header(staging.path / shard["file"])
        }
        absent = self.stored.checkpoint.missing(model)
        config = FlashSparseConfig(**self._quantization_config())
        try:
            Checkpoint.read(model, written).place(model, config, absent)
        except FormatError as error:
            raise CheckpointError(
                f"{self.report.source} cannot be packed so that it loads: {error} --ignore "
                "(ignore=) leaves a layer dense"
            ) from None

    # Deciding

    def _refuse_unknown_layers(self) -> None:
        unknown = self.settings.config.layers.keys() - {linear.name for linear in self.linears}
        if unknown:
            raise CheckpointError(
                f"layers= names {min(unknown)!r}, and the model has no such linear layer"
            )

    def _choose_dtype(self) -> bool:
        """Settles the dtype of the packed values; whether it was chosen unasked for some layer."""
        config = self.settings.config
        found: dict[torch.dtype, str] = {}  # by dtype, the first layer that has it
        for name, linear in self.linear_of.items():
            if self.reasons[linear.name] is None:
                info = self.directory.tensors[name]
                found.setdefault(info.dtype, f"layer {linear.name!r} {list(info.shape)}")
        for dtype, layer in found.items():
            if dtype not in _FLOATS[:3]:
                raise CheckpointError(
                    f"{layer} is {dtype_name(dtype)}: weights to be packed are float16, bfloat16 "
                    "or float32. Start from the model before it was quantized, or leave the layer "
                    "dense with --ignore (ignore=)"
                )
        if config.dtype is not None:
            return False
        format = get_format(config.format)
        stored = [dtype for dtype in format.dtypes if dtype in found]
        if len(stored) > 1:
            one, other = stored[:2]
            raise CheckpointError(
                f"{found[one]} is {dtype_name(one)} and {found[other]} is {dtype_name(other)}, and "
                "a packed model has one dtype: choose it with --dtype (dtype=)"
            )
        named = self.directory.config.get("dtype", self.directory.config.get("torch_dtype"))
        chosen = stored[0] if stored else packable_dtype(format, str(named))
        config.dtype = dtype_name(chosen)
        return any(dtype not in format.dtypes for dtype in found)

    # Finishing

    def _summarize(self, shards: Sequence[Mapping[str, Any]]) -> None:
        report = self.report
        known = {x["name"]: LayerReport(**x) for shard in shards for x in shard["layers"]}
        for linear in self.linears:
            absent = LayerReport(
                linear.name, linear.kind, linear.shape, None, 0, None, self.reasons[linear.name]
            )
            report.layers.append(known.get(linear.name, absent))
        report.bytes_out = sum(sum(shard["tensors"].values()) for shard in shards)
        report.rounded_values = sum(shard["rounded"] for shard in shards)
        warnings = warnings_about(report, self.stored, self.rounded_unasked)
        report.warnings = [*self.directory.notes, *warnings]

    def _write_surroundings(self, staging: Staging) -> None:
        """Everything but the weights; config.json, which makes it a model, last."""
        self.report.warnings += carry_files(self.directory, staging.path)
        write_card(staging.path / CARD, self.directory, self.report, self.name)
        name_shards(staging.path, staging.finished)
        config = {**self.directory.config, "quantization_config": self._quantization_config()}
        if self.settings.dtype is not None:
            config.pop("torch_dtype", None)
            config["dtype"] = dtype_name(self.settings.dtype)
        write_json(staging.path / CONFIG, config)

    def _quantization_config(self) -> dict[str, Any]:
        report = self.report
        config = self.settings.config.model_copy(deep=True)
        assert report.sparsity is not None  # `run` refuses a model of which no layer was packed
        config.sparsity = round(report.sparsity, 4)
        dense = [layer for layer in report.layers if not layer.is_packed]
        own = {layer.name: LayerConfig(format=DENSE, reason=layer.reason) for layer in dense}
        config.layers = {**config.layers, **own}
        return config.to_dict()


def _cast(part: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    try:
        return cast(part, dtype, name)
    except FormatError as error:
        raise CheckpointError(f"{error} (--dtype, dtype=)") from None
