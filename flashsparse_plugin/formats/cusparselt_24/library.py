# SPDX-License-Identifier: Apache-2.0
"""cuSPARSELt as torch brings it: compressing a 2:4 weight, and the product with it.

Its default algorithm is up to 3.6 times slower than the one that its own search finds. So that is
searched for once for each shape, dtype, GPU and number of tokens of `BUCKETS`: when a layer is
tuned, whose table keeps it, or else when one is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from torch.nn import functional as F

from ...messages import complaint
from ...packed import FormatError, dtype_name, rules

logger = logging.getLogger(__name__)

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
_told: set[str] = set()


class Found(BaseModel):
    """What a table keeps of the searches for a weight.

    Attributes:
        library: The version of cuSPARSELt, for which alone the numbers hold.
        algorithms: alg_id, split_k and split_k_mode by the most tokens that they are for. The
            library has some 20 algorithms, and -1 is a split that it chooses itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: Annotated[int, Field(strict=True, ge=1, lt=1 << 31)]
    algorithms: Annotated[
        dict[
            Annotated[int, Field(ge=1, le=1 << 20)],
            tuple[
                Annotated[int, Field(strict=True, ge=0, lt=1024)],
                Annotated[int, Field(strict=True, ge=-1, le=1024)],
                Annotated[int, Field(strict=True, ge=-1, lt=16)],
            ],
        ],
        Field(max_length=16),
    ]


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
    """Makes the library's layout of a dense weight that follows 2:4.

    Args:
        weight: [rows, columns], float16 or bfloat16, on a GPU.

    Returns:
        `compressed_shape`, of the weight's dtype.

    Raises:
        FormatError: Where the library refuses the weight.
    """
    with _refusals(weight.dtype, (weight.shape[0], weight.shape[1])):
        return torch._cslt_compress(weight)


@contextmanager
def _refusals(dtype: torch.dtype, shape: tuple[int, int]) -> Iterator[None]:
    try:
        with rules():
            yield
    except FormatError as error:
        raise FormatError(
            f"cuSPARSELt refuses a {dtype_name(dtype)} weight of shape {list(shape)}: {error}. "
            "Remedy: leave prompts=cusparselt out"
        ) from None


def require_found(kept: Mapping[str, Any]) -> Found | None:
    """Reads what a table keeps; None where it is empty.

    Raises:
        FormatError: For what `search` does not return.
    """
    try:
        return Found.model_validate(kept) if kept else None
    except ValidationError as error:
        raise FormatError(f"algorithms of cuSPARSELt: {complaint(error)}") from None


def search(compressed: Tensor, shape: tuple[int, int], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Has an algorithm for each number of tokens of `BUCKETS`: those that are kept, or by search.

    Args:
        compressed: What `compress` made of the weight.
        shape: (rows, columns) of the weight.
        kept: What this returned before, in another process; empty: nothing. Numbers of another
            version of the library are not taken, nor those with which it refuses a product.

    Returns:
        What `Found` reads.

    Raises:
        FormatError: For another `kept`, and where the library refuses the weight.
    """
    _take(require_found(kept), compressed, shape[1])
    with _refusals(compressed.dtype, shape):
        found = {str(each): list(find(compressed, shape[1], each)) for each in BUCKETS}
    return {"library": _version(), "algorithms": found}


def _take(found: Found | None, compressed: Tensor, columns: int) -> None:
    if found is None:
        return
    if found.library != _version():
        _tell(
            f"the table's algorithms are those of cuSPARSELt {found.library}, and this is "
            f"{_version()}: they are searched for when layers are loaded. `flashsparse tune` keeps "
            "them"
        )
        return
    for tokens in BUCKETS:
        key = _key(compressed, columns, tokens)
        if key in _algorithms or tokens not in found.algorithms:
            continue
        algorithm, x = found.algorithms[tokens], compressed.new_zeros(tokens, columns)
        try:
            _multiply(x, compressed, None, algorithm)
        except RuntimeError as error:
            _tell(
                f"cuSPARSELt refuses the table's algorithm for {tokens} tokens of a "
                f"[{len(compressed)}, {columns}] weight, and is asked for another: "
                f"{str(error).splitlines()[0]}"
            )
            continue
        _algorithms[key] = algorithm


def _tell(message: str) -> None:
    if message not in _told:
        _told.add(message)
        logger.warning("%s", message)


def _version() -> int:
    return torch.backends.cusparselt.version() or 1


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
    algorithm = find(compressed, columns, tokens)
    padded = F.pad(x, (0, 0, 0, -tokens % TOKENS)) if tokens % TOKENS else x
    return _multiply(padded, compressed, bias, algorithm)[:tokens]


def _multiply(x: Tensor, compressed: Tensor, bias: Tensor | None, algorithm: _Algorithm) -> Tensor:
    # By place: releases of torch call the last argument by different names.
    return torch._cslt_sparse_mm(compressed, x.t(), bias, None, None, True, *algorithm)


def _key(compressed: Tensor, columns: int, tokens: int) -> _Key:
    bucket = next((each for each in BUCKETS if tokens <= each), BUCKETS[-1])
    return compressed.device, compressed.dtype, len(compressed), columns, bucket


def find(compressed: Tensor, columns: int, tokens: int) -> _Algorithm:
    """The algorithm for so many tokens of a weight, by search where none is known.

    Raises:
        RuntimeError: While a CUDA graph is captured, where none is known.
    """
    key = _key(compressed, columns, tokens)
    if key not in _algorithms:
        bucket = key[-1]
        if compressed.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"no algorithm of cuSPARSELt was searched for on {compressed.device}, for {bucket} "
                f"tokens of a [{len(compressed)}, {columns}] weight, and none can be while a CUDA "
                f"graph is captured. Remedy: multiply {bucket} tokens once before"
            )
        x = torch.randn(bucket, columns, device=compressed.device).to(compressed.dtype)
        search = torch._C._cusparselt.mm_search  # type: ignore[attr-defined]  # not in its stubs
        algorithm, split, mode, _ = search(compressed, x.t(), None, None, None, True)
        _algorithms[key] = algorithm, split, mode
    return _algorithms[key]
