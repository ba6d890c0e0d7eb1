# SPDX-License-Identifier: Apache-2.0
"""Sparse checkpoints of other tools are dense ones to transformers.

transformers is given a dense weight in the place of the tensors that a layout keeps for it. So a
model comes out dense, or packed where the user gives a FlashSparseConfig, as from any dense
checkpoint; a configuration of zeros alone is no quantization method (see `register`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flashsparse_plugin.checkpoint.files.headers import DTYPES, TensorInfo, tensor_names
from flashsparse_plugin.checkpoint.foreign import find_foreign
from flashsparse_plugin.checkpoint.foreign.sparsity_config import KEYS, is_sparse_alone
from flashsparse_plugin.names import QUANT_METHOD

from .headers import read_headers

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def shown_state_dict(
    model: PreTrainedModel, files: Iterable[str] | None, quantizer: Any = None
) -> Mapping[str, ShownTensor] | None:
    """The weights that a checkpoint stands for; None where its tensors are what they seem.

    Args:
        model: The skeleton, before it is loaded.
        files: The files that it is loaded from, if any.
        quantizer: What transformers loads it by, if anything.

    Raises:
        CheckpointError: For tensors of a layout that are no whole weight.
    """
    shown = getattr(quantizer, "shown", None)
    if shown is not None:  # packed tensors in the place of another tool's codes
        return {name: ShownTensor(info) for name, info in shown.items()}
    for key in KEYS:
        if is_sparse_alone(getattr(model.config, key, None)):
            delattr(model.config, key)  # not true of the model that is made of it
    quantization = getattr(model.config, "quantization_config", None)
    if quantization is not None and getattr(quantization, "quant_method", None) != QUANT_METHOD:
        return None  # another method reads the tensors
    files = [*(files or [])]
    if not find_foreign(tensor_names(files)):
        return None
    return {name: ShownTensor(info) for name, info in read_headers(model, files).items()}


class ShownTensor:
    """A tensor that is read when transformers slices it, as one of a safetensors file is."""

    def __init__(self, info: TensorInfo):
        self.info = info

    def __getitem__(self, index: Any) -> Tensor:
        return self.info.read()[index]

    def get_dtype(self) -> str:
        return _CODES[self.info.dtype]

    def get_shape(self) -> list[int]:
        return list(self.info.shape)
