# SPDX-License-Identifier: Apache-2.0
"""Packed layers that no kernel multiplies: each of their products unpacks the whole weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ..formats import format_names, get_format
from ..gpu import Gpu
from ..packed import FormatError, Scheme
from ..plan import LIBRARY
from .expected import typical_weight

DECODING = (1, 4, 16)
"""Tokens of products in which a weight's bytes are what takes the time."""
_SHAPE = (4096, 4096)  # of a layer that a scheme is judged by
_KINDS = {"cpu": "a CPU", "cuda": "a GPU"}


def has_kernel(scheme: Scheme, device: torch.device, gpu: Gpu | None = None) -> bool:
    """Whether a device has a kernel for decoding with weights of a scheme.

    Args:
        scheme: As stored, or as the device holds it.
        device: A CPU or a GPU.
        gpu: Which GPU; None: any.
    """
    held = scheme.format.runtime(scheme, device)
    if device.type == "cpu" and held.format.has_cpu_kernel:
        return True
    if set(held.format.implementations(held)) == {LIBRARY}:
        return False
    return gpu is None or _is_chosen(held, gpu)


def _is_chosen(held: Scheme, gpu: Gpu) -> bool:
    nbytes = typical_weight(_SHAPE, held, 0.5).nbytes
    return any(held.format.choose(held, _SHAPE, nbytes, n, gpu) != LIBRARY for n in DECODING)


def complaints(
    layers: Iterable[tuple[str, Scheme]], device: torch.device, gpu: Gpu | None = None
) -> Iterator[str]:
    """Yields a sentence for each scheme of some layers that a device has no kernel for.

    Args:
        layers: Names, and how each is stored.
        device: A CPU or a GPU.
        gpu: Which GPU; None: any.
    """
    names: dict[Scheme, list[str]] = {}
    for name, scheme in layers:
        names.setdefault(scheme, []).append(name)
    where = _KINDS[device.type] if gpu is None else f"this {gpu.name}"
    for scheme, those in names.items():
        if not has_kernel(scheme, device, gpu):
            more = f" and {len(those) - 1} more" if len(those) > 1 else ""
            others = ", ".join(_others(scheme, device, gpu))
            have = f"{others}, which have kernels there, or " if others else ""
            yield (
                f"no kernel multiplies {scheme} on {where}: layer {those[0]!r}{more} is unpacked "
                "at every step, which is slower than a dense weight. Remedy: "
                f"{have}leave such layers dense (ignore=, --ignore)"
            )


def _others(scheme: Scheme, device: torch.device, gpu: Gpu | None) -> Iterator[str]:
    """Short names, and names, of what has a kernel in the same dtype."""
    for name in format_names():
        for each in get_format(name).short_names or (name,):
            format = get_format(name)
            try:
                other = format.scheme(scheme.dtype, format.options_named(each))
            except FormatError:
                continue
            if has_kernel(other, device, gpu):
                yield each


def complaints_anywhere(layers: Iterable[tuple[str, Scheme]]) -> Iterator[str]:
    """`complaints` of CPUs and of GPUs, where it is not known what will run a model."""
    layers = list(layers)
    for kind in _KINDS:
        yield from complaints(layers, torch.device(kind))
