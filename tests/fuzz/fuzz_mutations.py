# SPDX-License-Identifier: Apache-2.0
"""Damage: what may have become of a tensor, a JSON document or a file."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import torch
from torch import Tensor

JUNK: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 5, 64, 2**31, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan")),
    *("", "x" * 300, "\x1b[2J\u202e", "\ud800", "re:(a+)+$", "re:(?!x)", "../x", "/etc/passwd"),
    *(
        "tiled_csl",
        "dense",
        "bfloat16",
        "float16",
        "F16",
        "I32",
        [],
        {},
        [[]],
        {"": {}},
        [None] * 50,
    ),
)


def of_tensor(random: Random, tensor: Tensor) -> Tensor:
    """A copy of a tensor with something changed, in memory of exactly its size."""
    if tensor.is_floating_point():
        integer = {2: torch.int16, 4: torch.int32}[tensor.itemsize]
        return of_tensor(random, tensor.view(integer)).view(tensor.dtype)
    flat = tensor.clone().view(-1)
    bits = 8 * tensor.itemsize
    at = random.randrange(len(flat)) if len(flat) else None
    kind = random.choice(("bit", "bit", "any", "near", "copy", "swap", "short", "long", "fill"))
    if kind == "short":
        return tensor.view(-1)[: random.randrange(len(flat) + 1)].clone()
    if kind == "long":
        return torch.cat([flat, flat.new_zeros(random.randrange(1, 50))])
    if at is not None:
        if kind == "bit":
            flat[at : at + 1] ^= signed(1 << random.randrange(bits), bits)
        elif kind == "any":
            flat[at] = signed(random.getrandbits(bits), bits)
        elif kind == "near":
            flat[at : at + 1] += random.randrange(-40, 41)
        elif kind == "copy":
            flat[at] = flat[random.randrange(len(flat))]
        elif kind == "swap":
            other = random.randrange(len(flat))
            flat[[at, other]] = flat[[other, at]]
        else:
            flat.fill_(signed(random.choice((0, 1, -1, random.getrandbits(bits))), bits))
    return flat.view(tensor.shape)


def signed(number: int, bits: int) -> int:
    """The number whose lowest bits these are in two's complement."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def of_json(random: Random, document: Any) -> Any:
    """A copy of a JSON document with one to three things changed."""
    document = copy.deepcopy(document)
    for _ in range(random.randrange(1, 4)):
        parent, key = random.choice(_places(document))
        if parent is None:
            return random.choice(JUNK)
        kind = random.choice(("junk", "junk", "junk", "drop", "rename", "number", "nest"))
        if kind == "drop":
            del parent[key]
        elif kind == "rename" and isinstance(parent, dict):
            parent[str(random.choice(JUNK))[:400]] = parent.pop(key)
        elif kind == "number" and isinstance(parent[key], int):
            parent[key] += random.choice((-1, 1, 4, 2**31, -(2**40)))
        elif kind == "nest":
            parent[key] = [parent[key]]
        else:
            parent[key] = copy.deepcopy(random.choice(JUNK))
    return document


def _places(node: Any, parent: Any = None, key: Any = None) -> list[tuple[Any, Any]]:
    found = [(parent, key)]
    if isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for name, child in list(children):
            found += _places(child, node, name)
    return found


def of_bytes(random: Random, data: bytes) -> bytes:
    """A file with a few bytes changed, cut, or added."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        kind = random.choice(("bit", "bit", "byte", "cut", "insert", "repeat"))
        at = random.randrange(len(changed) + 1)
        if kind == "cut":
            del changed[at : at + random.choice((1, 8, len(changed)))]
        elif kind == "insert":
            changed[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == "repeat":
            changed[at:at] = changed[at : at + random.randrange(1, 65)]
        elif at < len(changed):
            changed[at] = changed[at] ^ 1 << random.randrange(8) if kind == "bit" else 0x22
    return bytes(changed)


def of_safetensors(random: Random, data: bytes) -> bytes:
    """A safetensors file with its header or its data changed."""
    if random.random() < 0.3:
        return of_bytes(random, data)
    length = int.from_bytes(data[:8], "little")
    if not length:  # of a run that was stopped before it wrote the header
        return of_bytes(random, data)
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if random.random() < 0.3:
        body = of_bytes(random, body)
    else:
        header = of_json(random, header)
    text = as_json(header)
    return len(text).to_bytes(8, "little") + text + body


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode(errors="surrogatepass")
