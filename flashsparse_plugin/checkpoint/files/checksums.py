# SPDX-License-Identifier: Apache-2.0
"""A checksum of each packed tensor, in the metadata of its file.

It covers the tensor's bytes and how they are to be read: a flipped bit is an error, and so is a
config.json that names another format, dtype or options, which no rule of a format could tell from
the right one. docs/formats.md specifies it. It finds damage, not forgery: who changes a tensor can
change its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import xxhash

from ...packed import PackedWeight, dtype_name
from .headers import CheckpointError, TensorInfo, as_bytes


def checksum(packed: PackedWeight, name: str) -> str:
    """The checksum of one tensor of a packed weight: 16 hexadecimal digits."""
    scheme = packed.scheme
    how = [
        *(scheme.format.name, scheme.format.version, scheme.values, dtype_name(scheme.dtype)),
        *(list(packed.shape), name),
    ]
    text = json.dumps(how, sort_keys=True, separators=(",", ":"))
    digest = xxhash.xxh3_64(text.encode())
    digest.update(as_bytes(packed.tensors[name].detach().cpu()))
    return digest.hexdigest()


def verify(layer: str, packed: PackedWeight, infos: Mapping[str, TensorInfo]) -> None:
    """Compares a packed weight with the checksums in the files that it comes from.

    A tensor without one, of another writer or an earlier release, is taken as it is.

    Args:
        layer: Name of the layer, for the error message.
        packed: The weight.
        infos: The entries of its tensors in the files, by their own names.

    Raises:
        CheckpointError: For a tensor that differs.
    """
    for name, info in infos.items():
        if info.checksum is not None and info.checksum != checksum(packed, name):
            raise CheckpointError(
                f"layer {layer!r} {list(packed.shape)}: {info.name} in {info.path} does not have "
                f"the checksum that it was written with, read as {packed.scheme}. The file is "
                "damaged, "
                "or config.json names another format, dtype or options than it was packed by: "
                "fetch both again, or convert the model again with `flashsparse convert`"
            )
