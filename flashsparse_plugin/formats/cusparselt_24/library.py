# SPDX-License-Identifier: Apache-2.0
"""cuSPARSELt as torch brings it: compressing a 2:4 weight, and the product with it.

Its default algorithm is up to 3.6 times slower than the one that its own search finds. So that is
searched for once for each shape, dtype, GPU and number of tokens of `BUCKETS`, when a layer is
loaded, and kept as long as the process lives.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...packed import FormatError, dtype_name, rules

BUCKETS = (256, 512, 1024, 2048, 4096)
"""Tokens for which an algorithm is searched for; fewer take that of the next, more the last."""

MULTIPLE = 64  # of rows and of columns of a weight; for others the library pads its metadata
TOKENS = 8  # of tokens

HOST_OPERATIONS = 8e11
"""Of a product that takes an H200 as long as a call takes its host, which is up to 0.7 ms.

torch makes a plan anew in each call. Smaller products are worth it in a CUDA graph alone."""

_Key = tuple[torch.device, torch.dtype, int, int, int]  # of a weight of rows, columns; a bucket
_Algorithm = tuple[int, int, int]  # alg_id, split_k and split_k_mode, as torch calls them
_algorithms: dict[_Key, _Algorithm] = {}


def compressed_shape(rows: int, columns: int) -> tuple[int, int]:
    """The shape of a compressed weight: half of the values, and 2 bits for each of these."""
    return rows, columns * 9 // 16


def require_shape(rows: int, columns: int) -> None:
    """Raises FormatError for a weight of a shape that the library does not take."""
    if rows % MULTIPLE or columns % MULTIPLE:
        raise FormatError(
            f"cuSPARSELt takes weights whose rows and columns are multiples of {MULTIPLE}, not "
            f"[{rows}, {columns}]. Remedy: leave prompts=cusparselt out"
        )


def require(device: torch.device) -> None:
    """Raises FormatError where the library cannot run."""
    if device.type != "cuda":
        raise FormatError(
            f"cuSPARSELt runs on NVIDIA GPUs, and the weight is on a {device.type} device. Remedy: "
            "leave prompts=cusparselt out"
        )
    if not torch.backends.cusparselt.is_available():
        raise FormatError(
            f"this torch ({torch.__version__}) was built without cuSPARSELt. Remedy: install "
            "a torch for CUDA that has it, or leave prompts=cusparselt out"
        )


def compress(weight: Tensor) -> Tensor:
    """Makes the library's layout of a dense weight that follows 2:4, and finds its algorithms.

    Args:
        weight: [rows, columns], float16 or bfloat16, on a GPU.

    Returns:
        `compressed_shape`, of the weight's dtype.

    Raises:
        FormatError: Where the library refuses the weight.
    """
    try:
        with rules():
            compressed = torch._cslt_compress(weight)
            for tokens in BUCKETS:
                _algorithm(compressed, weight.shape[1], tokens)
    except FormatError as error:
        raise FormatError(
            f"cuSPARSELt refuses a {dtype_name(weight.dtype)} weight of shape "
            f"{list(weight.shape)}: {error}. Remedy: leave prompts=cusparselt out"
        ) from None
    return compressed


def pays(tokens: int, rows: int, columns: int, device: torch.device) -> bool:
    """Whether the host keeps up with the library: in a CUDA graph, or by the size of a product."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return True
    return 2 * tokens * rows * columns >= HOST_OPERATIONS


def product(x: Tensor, compressed: Tensor, bias: Tensor | None) -> Tensor:
    """Computes x [tokens, columns] times the transposed weight, plus bias, in the dtype of x.

    Args:
        x: Contiguous, of the dtype of the weight.
        compressed: What `compress` made.
        bias: [rows] in the dtype of x, or None.

    Raises:
        RuntimeError: While a CUDA graph is captured, for a shape that the search has not seen.
    """
    tokens, columns = x.shape
    algorithm = _algorithm(compressed, columns, tokens)
    padded = F.pad(x, (0, 0, 0, -tokens % TOKENS)) if tokens % TOKENS else x
    # By place: releases of torch call the last argument by different names.
    y = torch._cslt_sparse_mm(compressed, padded.t(), bias, None, None, True, *algorithm)
    return y[:tokens]


def _algorithm(compressed: Tensor, columns: int, tokens: int) -> _Algorithm:
    bucket = next((each for each in BUCKETS if tokens <= each), BUCKETS[-1])
    key = (compressed.device, compressed.dtype, len(compressed), columns, bucket)
    if key not in _algorithms:
        if compressed.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"no algorithm of cuSPARSELt was searched for on {compressed.device}, for {bucket} "
                f"tokens of a [{len(compressed)}, {columns}] weight, and none can be while a CUDA "
                f"graph is captured. Remedy: multiply {bucket} tokens once before"
            )
        x = torch.randn(bucket, columns, device=compressed.device).to(compressed.dtype)
        search = torch._C._cusparselt.mm_search  # type: ignore[attr-defined]
        algorithm, split, mode, _ = search(compressed, x.t(), None, None, None, True)
        _algorithms[key] = algorithm, split, mode
    return _algorithms[key]
