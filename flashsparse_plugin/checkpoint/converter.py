# SPDX-License-Identifier: Apache-2.0
"""convert_checkpoint: a dense model directory to a packed one, one layer in memory at a time."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashsparse_plugin

from ..config import FlashSparseConfig
from ..formats import get_format, pack
from ..matching import matches
from ..packed import WEIGHT_DTYPES, Format, FormatError, PackedWeight
from .advice import nothing_packed, warnings_about
from .card import write_card
from .linears import Linear, find_linears
from .reader import CONFIG, CheckpointError, ModelDirectory, TensorInfo
from .report import ConversionReport, LayerReport, human
from .staging import Staging
from .surroundings import CARD, carry_files, name_shards, write_json
from .values import (
    cast,
    count_changed,
    dtype_name,
    parse_dtype,
    parse_size,
    same_bits,
    same_bits_but_zero_sign,
)
from .writer import ShardWriter

logger = logging.getLogger(__name__)

_FLOATS = (*WEIGHT_DTYPES, torch.float32, torch.float64)

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is done now."""


def convert_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    format: str = "tiled_csl",
    options: Mapping[str, int] | None = None,
    dtype: torch.dtype | str | None = None,
    ignore: Sequence[str] = ("lm_head",),
    pack_all: bool = False,
    max_shard_size: int | str = "5GB",
    overwrite: bool = False,
    on_progress: Progress | None = None,
) -> ConversionReport:
    """Packs the linear layers of a pruned model and writes it as a new model directory.

    Peak memory is about one layer, dense and packed, whatever the size of the model. Every tensor
    is read back from disk and compared with the source before the output appears. A run that was
    killed is resumed by the same call.

    Args:
        source: Model directory with safetensors weights that are dense, with zeros.
        out: Directory to make; nothing is there before it is complete.
        format: Packed format, one of `format_names()`.
        options: Options of the format (nm_vector: n, m, vector_length).
        dtype: float16 or bfloat16, for all matrices; vectors (norms, biases) keep theirs. None
            keeps every tensor as it is, but for float32 layers, which have to be rounded to be
            packed, to the dtype in config.json or else bfloat16; a warning counts the values.
        ignore: Layers to leave dense: names, or patterns after "re:".
        pack_all: Pack also those layers that are larger packed than dense.
        max_shard_size: Bytes in one output file, as a number or like "5GB".
        overwrite: Replace `out` where it is a model directory.
        on_progress: Called as the work goes on.

    Returns:
        What was done, layer by layer.

    Raises:
        CheckpointError: For a source that cannot be read or packed, an output that is not to be
            written, and a written tensor that does not read back as it should.
        FormatError: For a format or options that there are not.
    """
    directory = ModelDirectory(source)
    _refuse_quantized(directory)
    conversion = _Conversion(
        directory,
        find_linears(directory),
        _Settings(
            get_format(format),
            dict(options or {}),
            parse_dtype(dtype),
            tuple(ignore),
            pack_all,
            parse_size(max_shard_size),
        ),
        on_progress or (lambda done, total, what: None),
    )
    _refuse_overlap(directory.path.resolve(), Path(out).resolve())
    with Staging(out, conversion.job(), overwrite) as staging:
        return conversion.run(staging)


@dataclass(frozen=True)
class _Settings:
    """What the user asked for, checked."""

    format: Format
    options: dict[str, int]
    dtype: torch.dtype | None
    ignore: tuple[str, ...]
    pack_all: bool
    max_shard_bytes: int

    def __post_init__(self) -> None:
        matches("", self.ignore)  # a pattern that is none is an error before the work starts


class _Conversion:
    def __init__(
        self,
        directory: ModelDirectory,
        linears: list[Linear],
        settings: _Settings,
        on_progress: Progress,
    ):
        self.directory, self.settings, self.linears = directory, settings, linears
        self.linear_of = {f"{x.stored}.weight": x for x in linears if x.stored is not None}
        self.reasons = {x.name: self._reason_not_to_pack(x) for x in linears}
        self.value_dtype, self.rounded_unasked = self._choose_dtype()
        self.tensors = list(directory.tensors.values())
        self.on_progress, self.done, self.total = on_progress, 0, 2 * directory.nbytes
        self.report = ConversionReport(
            str(directory.path),
            "",
            settings.format.name,
            dtype_name(self.value_dtype),
            directory.nbytes,
        )

    def job(self) -> dict[str, Any]:
        """What a resumed run must agree on."""
        settings = self.settings
        files = {}
        for path in self.directory.shards:
            stat = path.stat()
            files[path.name] = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
        config = json.dumps(self.directory.config, sort_keys=True).encode()
        return {
            "tool": flashsparse_plugin.__version__,
            "files": files,
            "config": hashlib.sha256(config).hexdigest(),
            "format": [settings.format.name, settings.format.version, settings.options],
            "dtype": settings.dtype and dtype_name(settings.dtype),
            "ignore": settings.ignore,
            "pack_all": settings.pack_all,
            "max_shard_bytes": settings.max_shard_bytes,
        }

    def run(self, staging: Staging) -> ConversionReport:
        self.report.out = str(staging.out)
        self.report.resumed_shards = len(staging.finished)
        position = staging.finished[-1]["end"] if staging.finished else 0
        self._advance(2 * sum(info.nbytes for info in self.tensors[:position]), "resuming")
        while position < len(self.tensors):
            shard = self._write_shard(staging, position)
            self._verify_shard(staging.path / shard["file"], position, shard)
            staging.add(shard)
            position = shard["end"]
        self._summarize(staging.finished)
        if not self.report.packed:
            staging.discard()
            raise CheckpointError(nothing_packed(self.report))
        self._write_surroundings(staging)
        staging.commit()
        for warning in self.report.warnings:
            logger.warning("%s", warning)
        return self.report

    def _advance(self, nbytes: int, what: str) -> None:
        self.done += nbytes
        self.on_progress(self.done, self.total, what)

    # Writing

    def _write_shard(self, staging: Staging, start: int) -> dict[str, Any]:
        """Writes the tensors from number `start` on until the shard is full."""
        file = f"part-{len(staging.finished) + 1:05}.safetensors"
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
                    for name, tensor in packed.tensors.items():
                        name = f"{info.name.removesuffix('weight')}{name}"
                        writer.add(name, tensor.dtype, tuple(tensor.shape), [tensor])
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
                for name in self.settings.format.tensor_names:
                    yield f"{info.name.removesuffix('weight')}{name}"

    def _pack(self, info: TensorInfo) -> tuple[PackedWeight | None, LayerReport | None]:
        """Packs a tensor where it is a weight to be packed, and tells about it where it is one."""
        linear = self.linear_of.get(info.name)
        if linear is None:
            return None, None
        reason = self.reasons[linear.name]
        bytes_dense = info.nbytes // info.dtype.itemsize * self._carried_dtype(info).itemsize
        sparsity = None
        if info.dtype in _FLOATS:
            kept = sum(int(part.count_nonzero()) for part in info.rows())
            sparsity = 1 - kept / (info.shape[0] * info.shape[1])
        layer = LayerReport(
            linear.name, linear.kind, linear.shape, sparsity, bytes_dense, None, reason
        )
        if reason is not None:
            return None, layer
        weight = cast(info.read(), self.value_dtype, info.name)
        try:
            packed = pack(weight, self.settings.format.name, **self.settings.options)
        except (FormatError, RuntimeError) as error:
            raise CheckpointError(
                f"layer {linear.name!r} {list(linear.shape)} cannot be packed to "
                f"{self.settings.format.name}: {str(error).splitlines()[0]}. Leave it dense with "
                f"--ignore {linear.name} (ignore=), or choose another format or options"
            ) from None
        layer.bytes_packed = packed.nbytes
        if packed.nbytes > bytes_dense and not self.settings.pack_all:
            layer.reason = (
                f"larger packed than dense: {human(packed.nbytes)} against {human(bytes_dense)} "
                f"at {1 - sparsity:.1%} density"
            )
            return None, layer
        return packed, layer

    def _carry(self, writer: ShardWriter, info: TensorInfo, dtype: torch.dtype) -> int:
        """Copies a tensor into the shard as it is, or cast; returns how many values changed."""
        changed = 0

        def parts() -> Iterator[Tensor]:
            nonlocal changed
            for part in info.rows():
                changed += count_changed(part, dtype)
                yield cast(part, dtype, info.name)

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
        for info in self.tensors[position : shard["end"]]:
            if info.name in shard["tensors"]:
                dtype = self._carried_dtype(info)
                written = TensorInfo(info.name, path, dtype, info.shape)
                same = all(
                    same_bits(part, cast(other, dtype, info.name))
                    for part, other in zip(written.rows(), info.rows(), strict=True)
                )
            else:
                same = self._packed_is_same(path, info)
            if not same:
                raise CheckpointError(
                    f"tensor {info.name!r} {list(info.shape)} does not read back from {path} as "
                    "it was written: check disk and memory of this machine, then run again"
                )
            self._advance(info.nbytes, f"checking {info.name}")

    def _packed_is_same(self, path: Path, info: TensorInfo) -> bool:
        linear, form = self.linear_of[info.name], self.settings.format
        prefix = info.name.removesuffix("weight")
        tensors = {
            name: TensorInfo(prefix + name, path, dtype, ()).read()
            for name, dtype in form.dtypes.items()
        }
        packed = PackedWeight(form, tensors, linear.shape, self.value_dtype, self.settings.options)
        weight = packed.validate(linear.name).unpack()
        start = 0
        for part in info.rows():
            part = cast(part, self.value_dtype, info.name)
            if not same_bits_but_zero_sign(weight[start : start + len(part)], part):
                return False
            start += len(part)
        return start == len(weight)

    # Deciding

    def _reason_not_to_pack(self, linear: Linear) -> str | None:
        if linear.tied_to is not None:
            return f"tied to {linear.tied_to}"
        if matches(linear.name, self.settings.ignore):
            return "ignored by name"
        if linear.stored is None:
            return "not in the checkpoint"
        if not linear.plain:
            return "a subclass of nn.Linear, which may compute something else"
        return None

    def _choose_dtype(self) -> tuple[torch.dtype, bool]:
        """Dtype of the packed values, and whether it was chosen for float32 layers unasked."""
        found: dict[torch.dtype, str] = {}
        for name, linear in self.linear_of.items():
            if self.reasons[linear.name] is None:
                info = self.directory.tensors[name]
                found.setdefault(info.dtype, f"layer {linear.name!r} {list(info.shape)}")
        for dtype, layer in found.items():
            if dtype not in (*WEIGHT_DTYPES, torch.float32):
                raise CheckpointError(
                    f"{layer} is {dtype_name(dtype)}: weights to be packed are float16, bfloat16 "
                    "or float32. Start from the model before it was quantized, or leave the layer "
                    "dense with --ignore (ignore=)"
                )
        if self.settings.dtype is not None:
            return self.settings.dtype, False
        stored = [dtype for dtype in WEIGHT_DTYPES if dtype in found]
        if len(stored) > 1:
            raise CheckpointError(
                f"{found[torch.float16]} is float16 and {found[torch.bfloat16]} is bfloat16, and "
                "a packed model has one dtype: choose it with --dtype (dtype=)"
            )
        named = self.directory.config.get("dtype", self.directory.config.get("torch_dtype"))
        default = torch.float16 if named == "float16" else torch.bfloat16
        return (stored[0] if stored else default), torch.float32 in found

    # Finishing

    def _summarize(self, shards: Sequence[Mapping[str, Any]]) -> None:
        report = self.report
        known = {x["name"]: LayerReport(**x) for shard in shards for x in shard["layers"]}
        for linear in self.linears:
            absent = LayerReport(
                linear.name, linear.kind, linear.shape, None, 0, None, self.reasons[linear.name]
            )
            report.layers.append(known.get(linear.name, absent))
        for layer in report.layers:
            layer.shape = tuple(layer.shape)
        report.bytes_out = sum(sum(shard["tensors"].values()) for shard in shards)
        report.rounded_values = sum(shard["rounded"] for shard in shards)
        report.warnings = [
            *warnings_about(report, self.directory, self.linears, self.rounded_unasked)
        ]

    def _write_surroundings(self, staging: Staging) -> None:
        """Everything but the weights; config.json, which makes it a model, last."""
        self.report.warnings += carry_files(self.directory, staging.path)
        write_card(staging.path / CARD, self.directory, self.report)
        name_shards(staging.path, staging.finished)
        config = {**self.directory.config, "quantization_config": self._quantization_config()}
        if self.settings.dtype is not None:
            config.pop("torch_dtype", None)
            config["dtype"] = dtype_name(self.settings.dtype)
        write_json(staging.path / CONFIG, config)

    def _quantization_config(self) -> dict[str, Any]:
        report, settings = self.report, self.settings
        config = FlashSparseConfig(
            format=settings.format.name,
            format_version=settings.format.version,
            dtype=report.dtype,
            sparsity=round(report.sparsity, 4),
            ignore=list(settings.ignore),
            options=settings.options,
            layers={
                layer.name: {"format": "dense", "reason": layer.reason}
                for layer in report.layers
                if not layer.is_packed
            },
        )
        return config.to_dict()


def _refuse_quantized(directory: ModelDirectory) -> None:
    quantization = directory.quantization
    if quantization is None:
        return
    method = quantization.get("quant_method")
    if method == "flashsparse":
        raise CheckpointError(
            f"{directory.path} is packed already (format {quantization.get('format')}): load it as "
            "it is, or look at it with `flashsparse inspect`. To change the format, convert the "
            "dense model again"
        )
    raise CheckpointError(
        f"{directory.path} is quantized already (quant_method {method!r} in config.json): start "
        "from the model in float16, bfloat16 or float32. Where its weights are in truth dense, "
        "remove quantization_config from config.json"
    )


def _refuse_overlap(source: Path, out: Path) -> None:
    if out == source or source.is_relative_to(out):
        raise CheckpointError(
            f"the output {out} would replace the source {source}: choose another output"
        )
