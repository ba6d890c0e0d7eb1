# SPDX-License-Identifier: Apache-2.0
"""The decision for a weight: the ranges that follow from times, and which times are believed."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch

from ..gpu import find_gpu
from ..messages import one_line
from ..plan import LIBRARY, Implementation, Plan
from . import model
from .model import Weight
from .table import DeviceKey, Range, read_own, shipped_table, table_path

logger = logging.getLogger(__name__)


def ranges_of(
    found: Mapping[int, Mapping[str, float]],
    implementations: Mapping[str, Implementation],
    margin: float = model.MARGIN,
) -> list[Range]:
    """The ranges that follow from times.

    A dense layer is the library's wherever no kernel was seen to be faster by the margin: at each
    number of tokens that was looked at, and between two of them if it is at the second, as the
    time of a kernel rises in steps. A packed layer has no implementation that would be there
    without us, and the faster one is taken; but unpacking has to save `model.UNPACKING`.

    Args:
        found: Seconds of the implementations, by tokens.
        implementations: `Weight.implementations`, in order; the last takes any number of tokens.
        margin: What a kernel for dense layers must be faster by, as a share.
    """
    names, tokens = list(implementations), sorted(found)
    unpacks = implementations[names[0]].most_tokens is None  # a packed weight, for the library
    safe = {
        count: {
            name: seconds + (model.UNPACKING if unpacks and name == LIBRARY else 0.0)
            for name, seconds in times.items()
            if implementations[name].most_tokens is None
            or seconds * (1 + margin) <= times.get(names[-1], math.inf)
        }
        for count, times in found.items()
    }
    begins = [tokens[0], *model.inflections(safe, names), tokens[-1] + 1]
    ranges = [
        Range(max_tokens=max(each for each in tokens if each < end), implementation=name)
        for name, begin, end in zip(names, begins[:-1], begins[1:], strict=True)
        if begin < end
    ]
    last = ranges[-1].implementation
    if implementations[last].most_tokens is None:
        ranges.pop()
    else:
        last = names[-1]
    return [*ranges, Range(max_tokens=None, implementation=last)]


_told: set[str] = set()


def resolve(weight: Weight, dtype: torch.dtype, device: torch.device | str) -> Plan | None:
    """Decides once, when a layer is loaded, what will multiply it. Logs a new reason once.

    Asks the user's table of this GPU and dtype, then the table that ships for GPUs of its class.
    Where neither measured the weight, the op decides in each call if it is packed, and the model
    if it is dense.

    Args:
        weight: The layer's weight.
        dtype: Dtype of weight and activations; only 16-bit dtypes leave a choice.
        device: Where the layer is.

    Returns:
        None for a packed weight that was not measured: its op knows its kernels best.

    Raises:
        TableError: Where there is a table for this GPU that cannot be read.
    """
    found = _decide(weight, str(dtype).removeprefix("torch."), torch.device(device))
    if found is not None and found.reason not in _told:
        _told.add(found.reason)
        logger.info("dataflow: %s", one_line(found.reason))
    return found


def _decide(weight: Weight, dtype: str, device: torch.device) -> Plan | None:
    is_packed = weight.scheme is not None
    if device.type != "cuda" or dtype not in ("float16", "bfloat16"):
        if is_packed:
            return None
        where = f"on {device.type}" if device.type != "cuda" else f"in {dtype}"
        only = [(None, LIBRARY)]
        return Plan.of(only, "device", f"{where} every layer has one implementation")
    key = DeviceKey.of(device)
    own = read_own(key, dtype)
    if own and (entry := own.find(weight)):
        return entry.plan("table", f"{weight}: {own.origin}, in {table_path(key, dtype)}")
    gpu = find_gpu(key.name, key.capability)
    shipped = shipped_table(gpu, key)
    decides = shipped is not None and (shipped.source == "measured" or not is_packed)
    if shipped and decides and (entry := shipped.find(weight)):
        reason = f"{weight}: {shipped.origin}, in the table that flashsparse-plugin brings"
        return entry.plan("shipped", reason)
    if is_packed:
        return None
    ranges = ranges_of(model.times(weight, gpu), weight.implementations, model.DOUBT)
    return Plan.of(
        ((each.max_tokens, each.implementation) for each in ranges),
        "model",
        f"{weight}: estimated by the model of an {gpu.name}, as no table has this shape; "
        "`flashsparse tune` measures",
    )
