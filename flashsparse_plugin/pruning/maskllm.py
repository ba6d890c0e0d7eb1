# SPDX-License-Identifier: Apache-2.0
"""Masks that MaskLLM learned (Fang et al., 2024, arXiv 2409.17481): zeros that others have chosen.

They are published as one archive of numpy, `mask_compressed.npz`. For each weight it has an array
NAME.mask, NAME being the parameter's in transformers: uint8, one bit an element in row-major order,
the first in the highest bit of a byte; a set bit keeps the element.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor, nn
from tqdm import tqdm

from ..modules import linear_modules, stored_weight, weight_of
from ..names import LM_HEAD
from .layers import PruneReport, check_weight, prunable_linears, report
from .masks import apply_mask_

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SUFFIX = ".weight.mask.npy"
_MAX_HEADER = 10_000  # bytes of an array's header, of which numpy reads no more either


def apply_masks(
    model: PreTrainedModel,
    path: str | Path,
    ignore: Sequence[str] = (LM_HEAD,),
    progress: bool = True,
) -> PruneReport:
    """Sets the weights of a model to zero that masks of MaskLLM drop, in place.

    Every weight that is kept stays the same bit for bit. Layers without a mask, and those that
    `ignore` matches, stay as they are.

    Args:
        model: The model that the masks were learned for.
        path: The archive.
        ignore: Layers left dense: names and `re:` patterns, as in `prune`.
        progress: Show a progress bar.

    Returns:
        The sparsity reached, layer by layer.

    Raises:
        ValueError: For an archive of another model, before any weight is changed; and, naming the
            mask, for one that is damaged (the layers before it are pruned then).
    """
    linears = prunable_linears(model, ignore)
    with _open(Path(path)) as file:
        masks = _Masks(file, Path(path), linear_modules(model))
        chosen = {name: linear for name, linear in linears.items() if name in masks.infos}
        if not chosen:
            raise ValueError(f"{path} has a mask for none of the layers that `ignore` leaves")
        for name, linear in chosen.items():
            check_weight(name, weight_of(linear))
        for name, linear in tqdm(chosen.items(), "masks", unit="layer", disable=not progress):
            weight = stored_weight(linear)
            apply_mask_(weight, masks.read(name).to(weight.device))
    return report("maskllm", chosen)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no archive of masks, an .npz file ({error})") from None


class _Masks:
    """The masks in an archive, of which nothing is trusted: only arrays of the right size are read.

    Args:
        file: The archive.
        path: Where it is, for error messages.
        linears: The linear layers of the model, by name.

    Attributes:
        infos: The entries in the archive, by the name of the layer.
    """

    def __init__(self, file: zipfile.ZipFile, path: Path, linears: Mapping[str, nn.Module]):
        self.file, self.path = file, path
        self.shapes = {name: stored_weight(linear).shape for name, linear in linears.items()}
        self.infos: dict[str, zipfile.ZipInfo] = {}
        for info in file.infolist():
            name = info.filename.removesuffix(_SUFFIX)
            if name == info.filename or name not in linears:
                self._refuse(info, "which matches no linear layer of this model")
            if name in self.infos:
                self._refuse(info, "a second time")
            if info.file_size > self._bytes(name) + _MAX_HEADER:
                self._refuse(info, f"of {info.file_size:,} bytes, for {list(self.shapes[name])}")
            self.infos[name] = info

    def read(self, name: str) -> Tensor:
        """The mask of a layer, bool, of the shape of its weight.

        Raises:
            ValueError: For an array that is no mask of this weight.
        """
        info, shape = self.infos[name], self.shapes[name]
        try:
            with self.file.open(info) as stream:
                data = self._data(stream, self._bytes(name))
        except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
            self._refuse(info, f"which cannot be read as one of {list(shape)} ({error})")
        except (zipfile.BadZipFile, zlib.error) as error:
            self._refuse(info, f"which is damaged ({error})")
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        count = math.prod(shape)
        if bits[count:].any():
            self._refuse(info, "with bits beyond its last element")
        return torch.from_numpy(bits[:count]).view(shape).bool()

    @staticmethod
    def _data(stream: IO[bytes], nbytes: int) -> bytes:
        version = npy.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"version {version} of the format npy")
        shape, _, dtype = npy.read_array_header_1_0(stream)
        if shape != (nbytes,) or dtype != np.uint8:
            raise ValueError(f"{dtype} {list(shape)} instead of uint8 [{nbytes}]")
        data = stream.read(nbytes)
        if len(data) != nbytes:
            raise ValueError(f"{len(data)} bytes instead of {nbytes}")
        return data

    def _bytes(self, name: str) -> int:
        return -(-math.prod(self.shapes[name]) // 8)

    def _refuse(self, info: zipfile.ZipInfo, what: str) -> NoReturn:
        raise ValueError(
            f"{self.path} has a mask {info.filename!r}, {what}. Is it another model's? Else fetch "
            "it again"
        )
