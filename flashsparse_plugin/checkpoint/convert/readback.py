# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor that was written reads back as what it was made of."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...packed import PackedWeight
from ..files.checksums import checksum
from ..files.headers import TensorInfo
from ..foreign.code_entries import CodesInfo
from .packer import Packer, cast_part
from .values import same_bits, same_bits_but_zero_sign


def reads_back(packer: Packer, header: Mapping[str, TensorInfo], info: TensorInfo) -> bool:
    """Compares a tensor of the source with what a file has of it, carried over or packed.

    Args:
        packer: What decided.
        header: The entries of the file, by name.
        info: The tensor of the source.

    Raises:
        FormatError: For packed tensors that are not valid.
    """
    written = header.get(info.name)
    if written is None:
        return _packed_is_same(packer, header, info)
    dtype = packer.carried_dtype(info)
    return (written.dtype, written.shape) == (dtype, info.shape) and all(
        same_bits(part, cast_part(other, dtype, info.name))
        for part, other in zip(written.rows(), info.rows(), strict=True)
    )


def _packed_is_same(packer: Packer, header: Mapping[str, TensorInfo], info: TensorInfo) -> bool:
    linear = packer.linear_of[info.name]
    scheme = packer.schemes[linear.name]
    prefix = info.name.removesuffix("weight")
    infos = {name: header[prefix + name] for name in scheme.format.tensors(scheme, linear.shape)}
    packed = PackedWeight(scheme, linear.shape, {n: each.read() for n, each in infos.items()})
    if any(each.checksum != checksum(packed, name) for name, each in infos.items()):
        return False
    packed.validate(linear.name)
    if not scheme.format.is_exact(scheme):
        if isinstance(info, CodesInfo):
            again = info.pack(scheme).tensors
            return all(torch.equal(again[name], each) for name, each in packed.tensors.items())
        source = linear.turned(cast_part(info.read(), scheme.dtype, info.name))
        rounded = scheme.format.rounded(source, packed)
        return same_bits_but_zero_sign(packed.unpack(), rounded)
    weight = linear.turned(packed.unpack())
    start = 0
    for part in info.rows():
        part = cast_part(part, scheme.dtype, info.name)
        if not same_bits_but_zero_sign(weight[start : start + len(part)], part):
            return False
        start += len(part)
    return start == len(weight)
