# SPDX-License-Identifier: Apache-2.0
"""ModelDirectory: a model directory on disk, read tensor by tensor and never trusted.

Opening one reads its files' headers (`Folder`), once, and no weight. What it then shows are views
of these entries: as they are, dense, or packed. Tensors are mapped from their file one at a time,
so that only the tensors that the caller holds are resident.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

import torch

from ...config import FlashSparseConfig
from ...formats import packed_names
from ...names import QUANT_METHOD
from ..files.explanations import about_packed, about_quantized
from ..files.folder import Folder
from ..files.headers import CheckpointError, TensorInfo
from ..files.places import CONFIG
from ..files.unmarked import refuse_unmarked
from ..foreign.entries import as_dense
from ..foreign.packing import as_packed, half_dtype
from ..foreign.quantization import is_quantized
from ..foreign.quantized import QuantizedTensors
from ..foreign.sparsity_config import without_sparsity

MAX_EMPTY_LAYERS: Final = 1000  # that config.json may count above the tensors in the files


class ModelDirectory:
    """A model directory with safetensors weights, dense or packed.

    Attributes:
        path: The directory.
        config: The content of config.json, less what tells of nothing but zeros.
        quantization: Its `quantization_config`; None if there is none.
        tensors: Header entries by tensor name, in file order and natural order of names. Weights
            that are kept in another tool's layout are entries of the dense ones. Those that
            another tool quantized are as they are, but in the views `dense` and `packed`.
        shards: The safetensors files.
        notes: What a user should know of how it was quantized, one sentence each.

    Args:
        path: The directory.

    Raises:
        CheckpointError: If a file is missing, damaged, contradictory, outside of the directory, or
            a pickle; the message tells the remedy.
    """

    def __init__(self, path: str | Path):
        self._folder = folder = Folder(path)
        self.path, self.shards = folder.path, folder.shards
        self.config = without_sparsity(folder.config)
        self.quantization = self._stated_quantization()
        self.notes: list[str] = []
        self._quantized: QuantizedTensors | None = None
        if self.quantization is not None and is_quantized(self.quantization):
            self._quantized = QuantizedTensors(folder.tensors, self.quantization, self.path)
            self.tensors = folder.tensors
        else:
            self.tensors = as_dense(folder.tensors, self.path)
        self._check_layer_counts(self.config)
        sealed = [name for name, info in self.tensors.items() if info.checksum is not None]
        refuse_unmarked(self.tensors, self.quantization, self.path, sealed)

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors as they are in the files."""
        return sum(info.bytes_stored for info in self.tensors.values())

    @property
    def has_codes(self) -> bool:
        """Whether `tensors` are those of another tool that quantized it: codes and scales."""
        return self._quantized is not None

    def locate(self, name: str) -> Path:
        """Returns the path of a file of this directory; refuses files outside of it."""
        return self._folder.locate(name)

    def dense(self, dtype: torch.dtype | None = None) -> ModelDirectory:
        """A view with a dense weight in the place of codes and scales of each layer.

        Args:
            dtype: Of these weights; None: that of the model, or of scales that it cannot hold.

        Raises:
            CheckpointError: For quantized weights that are not read.
        """
        if self._quantized is None:
            return self
        tensors = self._quantized.dense(dtype or half_dtype(*self._dtypes_named))
        return self._view(tensors, self._quantized.notes)

    def packed(
        self, given: FlashSparseConfig | None = None, dtype: torch.dtype | None = None
    ) -> ModelDirectory:
        """A view as of a packed model, with the codes of another tool as they are.

        Args:
            given: What the user asks for.
            dtype: Of activations; None: that of the model.

        Raises:
            CheckpointError: For quantized weights that are not read.
            FormatError: Where what is asked for contradicts the codes.
        """
        if self._quantized is None:
            return self
        wanted = half_dtype(dtype, *self._dtypes_named)
        tensors, config = as_packed(self._quantized, wanted, given)
        other = self._view(tensors, self._quantized.notes)
        other.quantization = config.to_dict()
        other.config = {**self.config, "quantization_config": other.quantization}
        return other

    def packed_layers(self) -> dict[str, dict[str, TensorInfo]]:
        """Per packed layer the entries of its tensors, by their own names."""
        named = packed_names(self.tensors)
        return {
            layer: {own: self.tensors[name] for own, name in tensors.items()}
            for layer, tensors in named.items()
        }

    def with_tensors(self, tensors: Mapping[str, TensorInfo]) -> ModelDirectory:
        """A view with these entries of tensors."""
        other = copy(self)
        other.tensors = dict(tensors)
        return other

    def _view(self, tensors: Mapping[str, TensorInfo], notes: list[str]) -> ModelDirectory:
        other = self.with_tensors(tensors)
        other.notes, other._quantized = notes, None
        return other

    @property
    def _dtypes_named(self) -> list[Any]:
        return [self.config.get("dtype"), self.config.get("torch_dtype")]

    def _stated_quantization(self) -> dict[str, Any] | None:
        found = self.config.get("quantization_config")
        if found is not None and not isinstance(found, dict):
            raise CheckpointError(
                f"quantization_config in {self.path / CONFIG} is not a JSON object"
            )
        return found or None

    def _check_layer_counts(self, config: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a number of layers that would take all memory to build."""
        most = len(self.tensors) + MAX_EMPTY_LAYERS
        for key, value in config.items():
            if isinstance(value, dict):
                self._check_layer_counts(value)
            elif "layer" in key and isinstance(value, int) and value > most:
                raise CheckpointError(
                    f"{key} in {self.path / CONFIG} is {min(value, 10**18):,}, and the files hold "
                    f"{len(self.tensors)} tensors: the two belong to different models, fetch them "
                    "together again"
                )


def refuse_quantized(
    directory: ModelDirectory, *, packed: bool = False, codes: bool = True
) -> None:
    """Raises CheckpointError for a model whose weights are not dense.

    Args:
        directory: The model.
        packed: Whether one that is packed by flashsparse will do.
        codes: Whether one will do that another tool quantized to codes that are read.
    """
    quantization = directory.quantization
    if quantization is None or (directory.has_codes and codes):
        return
    method = quantization.get("quant_method")
    if method != QUANT_METHOD:
        raise CheckpointError(about_quantized(str(directory.path), method))
    if not packed:
        raise CheckpointError(about_packed(str(directory.path), quantization.get("format")))
