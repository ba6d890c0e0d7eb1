# SPDX-License-Identifier: Apache-2.0
"""What a config.json may not do while the model that it describes is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from ..files.headers import CheckpointError

_MODULES_OF_A_TENSOR = 100  # far above those of any model
_MODULES_AT_LEAST = 5000
_MODULES_AT_MOST = 10_000  # of a config.json without files


@contextmanager
def nothing_fetched() -> Iterator[None]:
    """Keeps transformers from the network and from kernels of the Hub within the context.

    A configuration may name a repository as its attention, its experts or its backbone, and some
    models ask the Hub for kernels as they are built.
    """
    import huggingface_hub
    from transformers.integrations import hub_kernels

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
        stack.enter_context(mock.patch.object(hub_kernels, "_kernels_enabled", False, create=True))
        yield


def use_plain_implementations(config: Any) -> None:
    """Makes a configuration of transformers name implementations that need no other package."""
    for name in ("_attn_implementation", "_experts_implementation"):
        if hasattr(type(config), name):
            setattr(config, name, "eager")  # of its parts, too


@contextmanager
def modules_bounded(tensors: int | None) -> Iterator[None]:
    """Refuses a model that has far more modules than its files have tensors.

    config.json may ask for a million layers (or experts, or blocks) in a few bytes.

    Args:
        tensors: How many tensors the files have; None where there is nothing but config.json.

    Raises:
        CheckpointError: As soon as there are too many modules.
    """
    made, most = 0, _MODULES_AT_MOST
    why = "which no model has: fetch it again"
    if tensors is not None:
        most = _MODULES_AT_LEAST + _MODULES_OF_A_TENSOR * tensors
        why = (
            f"and the files hold {tensors} tensors: the two belong to different models, fetch them "
            "together again"
        )

    def count(module: nn.Module, name: str, child: nn.Module | None) -> None:
        nonlocal made
        made += 1
        if made > most:
            raise CheckpointError(f"config.json asks for more than {most:,} modules, {why}")

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
