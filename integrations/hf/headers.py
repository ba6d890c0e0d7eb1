# SPDX-License-Identifier: Apache-2.0
"""The headers of safetensors files: what a checkpoint holds, before any tensor is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from safetensors import SafetensorError, safe_open

from flashsparse_plugin.checkpoint.reader import DTYPES
from flashsparse_plugin.packed import FormatError


def read_headers(files: Iterable[str]) -> Mapping[str, torch.Tensor]:
    """All tensors of the files on the meta device; dtypes that torch lacks are left out.

    Raises:
        FormatError: For a file that is no whole safetensors file.
    """
    tensors = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                parts = {key: file.get_slice(key) for key in list(file.keys())}
                for key, part in parts.items():
                    dtype = DTYPES.get(part.get_dtype())
                    if dtype is not None:
                        tensors[key] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
        except SafetensorError as error:
            raise FormatError(
                f"{path} is not a whole safetensors file: {error}. The checkpoint is incomplete "
                "or damaged: fetch it again, or convert the model anew."
            ) from None
    return tensors
