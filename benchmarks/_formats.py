# SPDX-License-Identifier: Apache-2.0
"""A packed weight as the benchmarks use it: through the package's public functions.

What exists for one format only, such as damages of its tensors, is in a folder with the format's
name.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.dataflow.tuner import random_weight
from flashsparse_plugin.formats import find_form, format_names, get_format
from flashsparse_plugin.packed import Scheme
from flashsparse_plugin.plan import FEW, MANY, Plan

IMPLEMENTATIONS = {"sparse": Plan.only("sparse"), "unpacked": Plan.only("library")}
"""The plans of what is timed: the format's own kernels, and unpacking for torch's own linear."""


def unstructured() -> tuple[str, ...]:
    """Names of the formats that are stored and drop any zeros and nothing else, in 16 bits."""
    formats = [get_format(name) for name in format_names() if not get_format(name).keeps_zeros]
    return tuple(format.name for format in formats if any(map(_keeps_all, format.examples())))


def kernels(format: str) -> dict[str, Plan]:
    """The plans by which each kernel is timed of a format with one for few tokens and one for many.

    Empty for another. Forms that are never stored have kernels too.
    """
    chosen = find_form(format)
    known = chosen.implementations(chosen.examples()[0])
    return {name: Plan.only(name) for name in (FEW, MANY)} if MANY in known else {}


def _keeps_all(scheme: Scheme) -> bool:
    weight = random_weight((128, 128), 0.5, scheme.dtype)
    return scheme.format.conform(weight, scheme) is weight


def packed_for_kernels(weight: Tensor, format: str) -> fs.PackedWeight:
    """The weight as the kernels of its device read it."""
    return fs.pack(weight, format).prepare(weight.device)


def copy_of(packed: fs.PackedWeight) -> fs.PackedWeight:
    """The same weight elsewhere in memory."""
    tensors = {name: tensor.clone() for name, tensor in packed.tensors.items()}
    return dataclasses.replace(packed, tensors=tensors)


def multiply(
    packed: fs.PackedWeight, x: Tensor, bias: Tensor | None = None, plan: Plan | None = None
) -> Tensor:
    """Computes `x @ weight.T + bias`, by the op's own choice or by a plan."""
    return packed.linear(x, bias, plan)


def room(format: str, module: str) -> ModuleType | None:
    """Imports a module from the format's own folder; None if there is no such module."""
    if not (Path(__file__).parent / format / f"{module}.py").exists():
        return None
    return importlib.import_module(f"{format}.{module}")
