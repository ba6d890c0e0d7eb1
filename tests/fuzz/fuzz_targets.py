# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: each target damages something at random and reads it.

`Target.round` returns whether the damaged thing was accepted, and raises where it was neither
refused as it should be nor read right. All that a round does follows from its random numbers.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutations as mutations
import numpy as np
import torch
from checkpoints import quantization, save_llama
from foreign_checkpoints import LAYOUTS, QUANTIZED, WRITTEN, rewrite, tensors_of, written
from safetensors.torch import load_file
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.attention import CalibrationError, unified_max_of
from flashsparse_plugin.attention.calibration import text_config
from flashsparse_plugin.checkpoint import convert_checkpoint, inspect_checkpoint
from flashsparse_plugin.checkpoint.files.headers import TensorInfo
from flashsparse_plugin.checkpoint.foreign import LAYOUTS as KNOWN
from flashsparse_plugin.checkpoint.foreign import PRUNE_MASK
from flashsparse_plugin.checkpoint.foreign.packing import scheme_of
from flashsparse_plugin.checkpoint.foreign.quantized import QuantizedTensors
from flashsparse_plugin.checkpoint.write.staging import STATE
from flashsparse_plugin.dataflow.table import SHIPPED, TableError, read_table
from flashsparse_plugin.formats import all_formats
from flashsparse_plugin.formats.pattern.nm_vector import NMVector
from flashsparse_plugin.matching import matches
from flashsparse_plugin.messages import printable
from flashsparse_plugin.ops import reference
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme

NAMES = ("lm_head", "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj")


class Target(ABC):
    """Something to fuzz.

    Args:
        folder: An empty directory of its own.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @abstractmethod
    def round(self, random: Random) -> bool:
        """Damages and reads once; returns whether the damaged thing was accepted."""


def accepted(read: Callable[[], object], *refusals: type[Exception]) -> bool:
    """Whether something is read; a refusal must be a sentence that is safe to be shown."""
    try:
        read()
    except refusals as error:
        message = str(error)
        assert message and printable(message) == message and len(message) < 5000, message[:500]
        return False
    return True


# ---- tensors ------------------------------------------------------------------------------------


class Tensors(Target):
    """Packed tensors of every format, and of every form in which weights run on a CPU.

    What validates is read by every kernel, and means to each what it means to the reference.
    """

    def __init__(self, folder: Path, runtime: bool):
        super().__init__(folder)
        stored = [scheme for f in all_formats() if f.on_disk for scheme in f.examples()]
        running = [scheme.format.runtime(scheme, torch.device("cpu")) for scheme in stored]
        self.schemes: list[Scheme] = running if runtime else stored

    def round(self, random: Random) -> bool:
        scheme = random.choice(self.schemes)
        packed = scheme.format.pack(self._weight(random, scheme), scheme)
        tensors, shape = dict(packed.tensors), packed.shape
        for _ in range(random.randrange(1, 3)):
            name = random.choice(list(tensors))
            changed = mutations.of_tensor(random, tensors[name])
            tensors[name] = changed.clone()
        if random.random() < 0.1:
            shape = tuple(max(1, size - random.randrange(20)) for size in shape)
        damaged = PackedWeight(scheme, shape, tensors)
        if not accepted(lambda: damaged.validate("layer"), FormatError):
            if scheme.format.checks_as_it_reads:
                refusals = (RuntimeError, FormatError)
                assert not accepted(lambda: damaged.prepare("cpu"), *refusals), "prepare"
            return False
        self._read(random, damaged)
        return True

    def _weight(self, random: Random, scheme: Scheme) -> Tensor:
        generator = torch.Generator().manual_seed(random.getrandbits(32))
        rows, columns = random.randrange(1, 150), random.randrange(1, 140)
        weight = torch.randn(rows, columns, generator=generator)
        weight[torch.rand(rows, columns, generator=generator) < random.random()] = 0
        return scheme.format.conform(weight.to(scheme.dtype), scheme).contiguous()

    def _read(self, random: Random, packed: PackedWeight) -> None:
        weight = packed.format.reference.unpack(packed)
        assert same(packed.unpack(), weight), "unpack"
        running = packed.prepare("cpu").validate()
        assert same(running.unpack(), weight), "prepare"
        dtype = random.choice((torch.float32, torch.float16, torch.bfloat16))
        x = torch.randint(-3, 4, (random.choice((1, 2, 5, 26)), packed.shape[1])).to(dtype)
        taken = packed.format.round_activations(x, packed.scheme)
        expected, size = (
            reference.linear(a, b, None) for a, b in ((taken, weight), (taken.abs(), weight.abs()))
        )
        for form in (packed, running):
            y = form.linear(x)
            # Damaged values may be infinite, NaN, or too large to add up.
            judged = size < torch.finfo(dtype).max / 4
            off = (y.double() - expected).abs()[judged]
            assert (off <= 0.02 * size[judged] + 1e-6).all(), "linear"


class Foreign(Target):
    """Tensors that other tools keep for a weight: refused, or the weight that numpy makes."""

    def round(self, random: Random) -> bool:
        name = random.choice(LAYOUTS)
        generator = torch.Generator().manual_seed(random.getrandbits(32))
        shape = random.randrange(1, 20), 4 * random.randrange(1, 12)
        weight = torch.randn(shape, generator=generator).bfloat16()
        weight[torch.rand(shape, generator=generator) < random.random()] = 0
        tensors = tensors_of(weight, name)
        damaged = random.choice([part for part in tensors if part != "compressed"])
        tensors[damaged] = mutations.of_tensor(random, tensors[damaged])
        return accepted(lambda: self._read(name, tensors), FormatError)

    def _read(self, name: str, tensors: dict[str, Tensor]) -> None:
        weight, mask = KNOWN[name].dense("layer", tensors), tensors["bitmask"].numpy()
        kept = np.unpackbits(mask, axis=-1, count=weight.shape[-1], bitorder="little").astype(bool)
        expected = torch.zeros_like(weight)
        expected[torch.from_numpy(kept)] = tensors["compressed"].flatten()
        assert same(weight, expected), "dense"


class Masks(Target):
    """A weight and its mask, of torch.nn.utils.prune: refused, or the weight with its zeros."""

    def round(self, random: Random) -> bool:
        generator = torch.Generator().manual_seed(random.getrandbits(32))
        shape = random.randrange(1, 20), random.randrange(1, 40)
        kept = torch.rand(shape, generator=generator) < random.random()
        mask = kept.bfloat16().view(torch.int16) if random.random() < 0.5 else kept.byte()
        mask = mutations.of_tensor(random, mask)
        mask = mask.view(torch.bfloat16) if mask.dtype == torch.int16 else mask
        weight = torch.randn(shape, generator=generator).bfloat16()
        tensors = {"weight_orig": weight, "weight_mask": mask}
        return accepted(lambda: self._read(tensors), FormatError)

    def _read(self, tensors: dict[str, Tensor]) -> None:
        weight, mask = tensors.values()
        found = PRUNE_MASK.dense("layer", tensors)
        assert same(found, (weight.float() * mask.float()).bfloat16()), "dense"


class Codes(Target):
    """Codes and scales of another tool: refused, or the same weight dense and packed."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.models = [load_file(WRITTEN / name / "model.safetensors") for name in QUANTIZED]
        self.configs = [quantization(WRITTEN / name) for name in QUANTIZED]

    def round(self, random: Random) -> bool:
        number = random.randrange(len(self.models))
        layer = "model.layers.0." + random.choice(("self_attn.q_proj", "mlp.down_proj"))
        found = {n: t for n, t in self.models[number].items() if n.startswith(f"{layer}.")}
        damaged = random.choice(sorted(found))
        bits = {1: torch.uint8, 2: torch.int16}.get(found[damaged].itemsize)
        stored = found[damaged] if bits is None else found[damaged].view(bits)
        changed = mutations.of_tensor(random, stored)
        found[damaged] = changed if bits is None else changed.view(found[damaged].dtype)
        infos = {name: Held(name, tensor) for name, tensor in found.items()}
        return accepted(lambda: self._read(infos, self.configs[number]), FormatError)

    def _read(self, infos: dict[str, TensorInfo], config: dict[str, Any]) -> None:
        weight = QuantizedTensors(infos, config, Path("file")).weights(torch.bfloat16)[0]
        packed = weight.pack(
            scheme_of(NMVector(), weight, {"n": 2, "m": 4}, weight.dtype)
        ).validate("layer")
        assert same(packed.unpack(), weight.read()), "dense"


class Held(TensorInfo):
    """An entry of a tensor that is in memory."""

    def __init__(self, name: str, tensor: Tensor):
        super().__init__(name, Path("file"), tensor.dtype, tuple(tensor.shape))
        object.__setattr__(self, "tensor", tensor)

    def read(self) -> Tensor:
        return self.tensor


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two weights have the same bits, +0 and -0 taken as one."""
    a, b = one.contiguous().view(torch.int16), other.contiguous().view(torch.int16)
    return one.dtype == other.dtype and bool(((a == b) | ((a | b) & 0x7FFF == 0)).all())


# ---- files --------------------------------------------------------------------------------------


class Checkpoints(Target):
    """Model directories, dense and packed: configuration, index, headers and tensors."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.models = [make_model(folder / "dense"), folder / "packed", folder / "sharded"]
        convert_checkpoint(folder / "dense", folder / "packed")
        convert_checkpoint(folder / "dense", folder / "sharded", max_shard_size="20kB")
        for layout in LAYOUTS:
            self.models.append(rewrite(shutil.copytree(folder / "dense", folder / layout), layout))
        self.models += [written(name, folder / name) for name in QUANTIZED]

    def round(self, random: Random) -> bool:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(random.choice(self.models), copy)
        files = sorted(f for f in copy.iterdir() if f.suffix in (".json", ".safetensors"))
        files = [f for f in files if not f.name.startswith("tokenizer")]
        for file in random.sample(files, random.choice((1, 1, 2)) if len(files) > 1 else 1):
            data = file.read_bytes()
            if file.suffix == ".safetensors":
                data = mutations.of_safetensors(random, data)
            elif random.random() < 0.2:
                data = mutations.of_bytes(random, data)
            else:
                data = mutations.as_json(mutations.of_json(random, json.loads(data)))
            file.write_bytes(data)
        return accepted(lambda: inspect_checkpoint(copy), FormatError)


class Configs(Target):
    """The quantization_config of a checkpoint, and what `calibrate` writes into config.json."""

    BASE = {
        "quant_method": "flashsparse",
        "format": "tiled_csl",
        "format_version": 1,
        "dtype": "bfloat16",
        "sparsity": 0.5,
        "ignore": ["lm_head", "re:.*down_proj"],
        "modules_to_not_convert": ["router"],
        "options": {},
        "layers": {"a.b": {"format": "dense", "reason": "larger"}, "c": {"format": "tiled_csl"}},
    }
    PHI = {"phi": [0.5, 1.0], "a": -3.0, "b": 3.0, "recomputed": 0.01}
    CALIBRATION = {
        "num_attention_heads": 2,
        "unified_max": {
            "version": 1,
            "dtype": "bfloat16",
            "text": "t",
            "tokens": 64,
            "layers": [PHI],
        },
    }

    def round(self, random: Random) -> bool:
        if random.random() < 0.3:
            data = mutations.of_json(random, self.CALIBRATION)
            entry = data if isinstance(data, dict) else {}
            return accepted(lambda: unified_max_of(text_config(entry)), CalibrationError)
        data = mutations.of_json(random, self.BASE)
        if not isinstance(data, dict):
            return False
        return accepted(lambda: self._use(data), FormatError)

    def _use(self, data: dict[str, Any]) -> None:
        config = fs.FlashSparseConfig.from_dict(data)
        for name in NAMES:
            matches(name, config.ignore)
            config.scheme_of(name, dtypes=(torch.bfloat16,))
        fs.FlashSparseConfig.from_dict(config.to_dict())


class Tables(Target):
    """Tables of implementations, as they are in the cache."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        table = json.loads((SHIPPED / "h200.json").read_text())
        self.table = table | {"entries": table["entries"][:4]}

    def round(self, random: Random) -> bool:
        path = self.folder / "table.json"
        text = mutations.as_json(self.table)
        if random.random() < 0.3:
            path.write_bytes(mutations.of_bytes(random, text))
        else:
            path.write_bytes(mutations.as_json(mutations.of_json(random, self.table)))
        return accepted(lambda: read_table(path), TableError)


class States(Target):
    """What a stopped conversion leaves: whatever it says, the output is the source, packed."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        make_model(folder / "dense")
        convert_checkpoint(folder / "dense", folder / "whole", max_shard_size="20kB")
        self.whole = contents(folder / "whole")

        def stop(done: int, total: int, what: str) -> None:
            if done > 0.7 * total:
                raise KeyboardInterrupt

        try:
            self._convert(folder / "out", stop)
        except KeyboardInterrupt:
            (folder / "out.partial").rename(folder / "stopped")

    def round(self, random: Random) -> bool:
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        partial = self.folder / "out.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(self.folder / "stopped", partial)
        state = partial / STATE
        if random.random() < 0.7:
            data = json.loads(state.read_bytes())
            data["finished"] = mutations.of_json(random, data["finished"])
            state.write_bytes(mutations.as_json(data))
        else:
            part = random.choice(sorted(partial.glob("part-*")))
            part.write_bytes(mutations.of_safetensors(random, part.read_bytes()))
        resumed = self._convert(self.folder / "out")
        (self.folder / "out" / "README.md").write_bytes(self.whole["README.md"])  # names the folder
        assert contents(self.folder / "out") == self.whole, "the output is not the source"
        return resumed > 0

    def _convert(self, out: Path, on_progress: Any = None) -> int:
        report = convert_checkpoint(
            self.folder / "dense", out, max_shard_size="20kB", on_progress=on_progress
        )
        return report.resumed_shards


def make_model(path: Path) -> Path:
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=40)
    return save_llama(path, **sizes)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


TARGETS: dict[str, Callable[[Path], Target]] = {
    "packed tensors": lambda folder: Tensors(folder, runtime=False),
    "runtime forms": lambda folder: Tensors(folder, runtime=True),
    "foreign layouts": Foreign,
    "foreign masks": Masks,
    "foreign codes": Codes,
    "checkpoints": Checkpoints,
    "configs": Configs,
    "tables": Tables,
    "states": States,
}
