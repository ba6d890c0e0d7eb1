# SPDX-License-Identifier: Apache-2.0
"""FlashSparse: pruned language models at the speed and size that their zeros promise.

Importing this package registers the method `flashsparse` with transformers. It imports neither
torch nor transformers itself: names are looked up when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from . import autoload

if TYPE_CHECKING:
    from .config import FlashSparseConfig
    from .formats import format_names, get_format, pack
    from .linear import SparseLinear
    from .llm import LLM
    from .packed import FormatError, PackedWeight
    from .pruning.sparsify import sparsify_
    from .sparsify import sparsify_checkpoint

__version__ = "0.2.0.dev0"

_HOME = {
    "LLM": "llm",
    "FlashSparseConfig": "config",
    "FormatError": "packed",
    "PackedWeight": "packed",
    "SparseLinear": "linear",
    "format_names": "formats",
    "get_format": "formats",
    "pack": "formats",
    "sparsify_": "pruning.sparsify",
    "sparsify_checkpoint": "sparsify",
}

__all__ = [
    "LLM",
    "FlashSparseConfig",
    "FormatError",
    "PackedWeight",
    "SparseLinear",
    "__version__",
    "format_names",
    "get_format",
    "pack",
    "sparsify_",
    "sparsify_checkpoint",
]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)


autoload.install()
