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

from ...config import FlashSparseConfig, LayerConfig
from ...dataflow.unpacked import complaints_anywhere
from ...formats.values.dtypes import count_changed
from ...messages import one_line
from ...names import DENSE
from ...packed import FormatError, dtype_name
from ..card.model_card import write_card
from ..files.checksums import checksum
from ..files.headers import CheckpointError, TensorInfo, read_header
from ..files.places import CONFIG
from ..hub.fetching import directory_of
from ..read.directory import ModelDirectory, refuse_quantized
from ..read.linears import StoredModel
from ..read.stored import Checkpoint
from ..write.report import ConversionReport, LayerReport, human
from ..write.room import disk_errors, require_room
from ..write.staging import Staging, identity
from ..write.surroundings import CARD, carry_files, name_shards, write_json
from ..write.writer import ShardWriter
from .advice import nothing_packed, warnings_about
from .choosing import settle, target_for
from .keeping import target_of
from .packer import Packer, cast_part
from .readback import reads_back
from .settings import Settings, refuse_overlap, settings_of

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is done now."""


def convert_checkpoint(
    source: str | Path | ModelDirectory,
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
    device: str | None = None,
    batch: int | None = None,
    head: str | None = None,
) -> ConversionReport:
    """Packs the linear layers of a pruned model and writes it as a new model directory.

    Peak memory is about one layer, dense and packed, whatever the size of the model. Every tensor
    is read back from disk and compared with the source before the output appears. A run that was
    killed is resumed by the same call.

    Args:
        source: Model directory with safetensors weights that are dense, with zeros; or, as a
            string, the name of such a model on the Hub: "org/name" or "org/name@revision"; or the
            directory, opened.
        out: Directory to make; nothing is there before it is complete.
        format: Packed format, one of `format_names()`; None: the default, or the one that holds the
            codes of a model that another tool quantized. "auto": for each layer the one that should
            be fastest on `device`, or none where dense is.
        options: Options of the format (nm_vector: n, m, vector_length, values, group, activations).
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
        device: What "auto" chooses for: the name of a GPU such as "H200", "cpu", or "this" (None)
            for the GPU of this machine, or its CPU where it has none.
        batch: Sequences decoded at once, which "auto" chooses for; None: 8.
        head: "int8", "fp8" or "lossless": the output head keeps every weight, in 8 bits or as it
            is; where it is tied to the embedding, one weight serves both. None: as the other
            arguments say.

    Returns:
        What was done, layer by layer.

    Raises:
        CheckpointError: For a source that cannot be read or packed, an output that is not to be
            written, and a written tensor that does not read back as it should.
        FormatError: For a format or options that there are not.
        ValueError: For an unknown device or an invalid batch, or if either is given without
            format="auto".
    """
    if isinstance(source, ModelDirectory):
        directory = source
    else:
        directory = ModelDirectory(directory_of(source))
    refuse_quantized(directory)
    format, options = target_of(directory, format, options)
    settings = settings_of(format, options, layers, dtype, ignore, pack_all, max_shard_size, head)
    target = target_for(settings, device, batch)
    refuse_overlap(directory.path.resolve(), Path(out).resolve())
    require_room(Path(out))
    directory = directory.dense(settings.dtype)
    stored, choices = StoredModel(directory, split=True), list[str]()
    directory = stored.directory
    stored.place_head(settings.config)
    try:
        stored.checkpoint.refuse_incomplete(stored.model, settings.config.ignore)
    except FormatError as error:
        raise CheckpointError(f"{directory.path}: {error}") from None
    on_progress = on_progress or (lambda done, total, what: None)
    if target is not None:
        settings, choices = settle(settings, directory, stored, target, on_progress)
    conversion = _Conversion(directory, stored, settings, on_progress, name)
    conversion.report.choices = choices
    staging = Staging(out, conversion.job(), overwrite)
    with disk_errors(staging.path, lambda: conversion.rest(staging)), staging:
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
        self.packer = Packer(directory, stored, settings)
        self.tensors = self.packer.tensors()
        self.on_progress, self.done = on_progress, 0
        self.total = 2 * sum(info.nbytes for info in self.tensors)
        assert settings.config.dtype is not None  # the packer settled it
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
        for choice in self.report.choices:
            logger.info("auto: %s", one_line(choice))
        for warning in self.report.warnings:
            logger.warning("%s", one_line(warning))
        return self.report

    def _resume(self, staging: Staging) -> int:
        """Keeps the shards of an earlier run that are what its state says; returns where they end.

        They are compared with the source, as what was just written is.
        """
        position = 0
        for number, shard in enumerate(staging.finished):
            done = self.done
            if not self._is_as_claimed(staging.path / shard["file"], position, shard):
                logger.warning(
                    "%s does not match its recorded state: writing it again", shard["file"]
                )
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
        file = staging.next_name()
        rest = self.tensors[start:]
        writer = ShardWriter(staging.path / file, self.packer.names(rest))
        layers: list[LayerReport] = []
        tensors: dict[str, int] = {}
        rounded, end = 0, start
        try:
            for info in rest:
                planned = info.nbytes
                packed, layer = self.packer.pack(info)
                if packed is not None:
                    planned = packed.nbytes
                if tensors and writer.nbytes + planned > self.settings.max_shard_bytes:
                    break
                if packed is None:
                    dtype = self.packer.carried_dtype(info)
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
                layers += self.packer.layers_in(info) if layer is None else [layer]
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

    def _carry(self, writer: ShardWriter, info: TensorInfo, dtype: torch.dtype) -> int:
        """Copies a tensor into the shard as it is, or cast; returns how many values changed."""
        changed = 0

        def parts() -> Iterator[Tensor]:
            nonlocal changed
            for part in info.rows():
                changed += count_changed(part, dtype)
                yield cast_part(part, dtype, info.name)

        writer.add(info.name, dtype, info.shape, parts())
        return changed

    # Verifying

    def _verify_shard(self, path: Path, position: int, shard: Mapping[str, Any]) -> None:
        """Reads a finished shard back and compares it, tensor by tensor, with the source."""
        header = {written.name: written for written in read_header(path)}
        for info in self.tensors[position : shard["end"]]:
            if not reads_back(self.packer, header, info):
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
        layers, rounded, packer = [], 0, self.packer
        claimed = {layer["name"]: layer for layer in shard["layers"]}
        for info in self.tensors[start : shard["end"]]:
            layer, dtype, own = packer.layer(info), packer.carried_dtype(info), {info.name}
            if layer is not None:
                if layer.reason is None and layer.name in claimed:
                    layer.error = claimed[layer.name]["error"]
                    packer.judge(layer, claimed[layer.name]["bytes_packed"] or 0)
                if layer.is_packed:
                    dtype, own = packer.schemes[layer.name].dtype, {*packer.names([info])} - own
                    if layer.bytes_packed != sum(shard["tensors"].get(name, 0) for name in own):
                        return False
                layers.append(asdict(layer))
            layers += map(asdict, packer.layers_in(info))
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

    def _check_loading(self, staging: Staging) -> None:
        """Has the written files placed in the model, by their headers, as loading will."""
        written = {
            info.name: info
            for shard in staging.finished
            for info in read_header(staging.path / shard["file"])
        }
        config = FlashSparseConfig(**self._quantization_config())
        try:
            checkpoint = Checkpoint.read(self.stored.names, written)
            checkpoint.place(self.stored.model, config)
            checkpoint.place_experts(config)
        except FormatError as error:
            raise CheckpointError(
                f"{self.report.source} cannot be packed so that it loads: {error} --ignore "
                "(ignore=) leaves a layer dense"
            ) from None

    # Finishing

    def _summarize(self, shards: Sequence[Mapping[str, Any]]) -> None:
        report = self.report
        known = {x["name"]: LayerReport(**x) for shard in shards for x in shard["layers"]}
        for linear in self.packer.linears:
            reason = self.packer.reasons[linear.name]
            absent = LayerReport(linear.name, linear.kind, linear.shape, None, 0, None, reason)
            report.layers.append(known.get(linear.name, absent))
        report.bytes_out = sum(sum(shard["tensors"].values()) for shard in shards)
        report.rounded_values = sum(shard["rounded"] for shard in shards)
        warnings = warnings_about(report, self.stored, self.packer.rounded_unasked)
        held = [(x.name, self.packer.schemes[x.name]) for x in report.packed]
        report.warnings = [*self.directory.notes, *warnings, *complaints_anywhere(held)]

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
        name_of = {x.name: x.expert.module for x in self.packer.linears if x.expert is not None}
        own = {
            name_of.get(layer.name, layer.name): LayerConfig(format=DENSE, reason=layer.reason)
            for layer in dense
        }
        config.layers = {**config.layers, **own}
        return config.to_dict()
