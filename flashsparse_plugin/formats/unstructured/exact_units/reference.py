# SPDX-License-Identifier: Apache-2.0
"""exact_units in pure torch: slow, short, and the oracle of every test.

Written from kernels/formats/exact_units.h and from no kernel,
so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor

from ....packed import PackedWeight, Scheme


@functools.cache
def places(row: int, column: int) -> tuple[tuple[int, int, int], ...]:
    """Where the bits of an element's half are: its lowest bit, the word, and the bit in that."""
    panel, step, lane = column // 64, column % 64 // 16, 4 * (row % 8) + column % 8 // 2
    register, half = 2 * (column % 16 // 8) + row // 8, column % 2 * 16

    def word(number: int) -> int:
        number += 3 * step
        return (3 * panel + number // 4) * 128 + lane * 4 + number % 4

    if register < 3:
        return tuple((bit, word(register), half + bit) for bit in (*range(11), 15))
    found = [(bit, word(0), (half + bit + 12) % 32) for bit in (0, 1, 2, 15)]
    found += [(bit, word(1), half + bit + 8) for bit in range(3, 7)]
    return tuple(found + [(bit, word(2), half + bit + 4) for bit in range(7, 11)])


def _four(row: int, column: int) -> tuple[int, int]:
    """Where a unit of 2:4 says which of four columns, from `column` on, it keeps: word and bit."""
    step, part, four = column // 32, column % 32 // 16, column % 16 // 4
    giver = 4 * (row % 8) + 2 * (step % 2) + part
    return 768 + giver * 4 + step // 2, 16 * (row // 8) + 4 * four


def _kept(halves: list[int]) -> list[int]:
    """The two columns of four that are stored: those that are not zero, then the smallest."""
    kept = [i for i in range(4) if halves[i]]
    return sorted(kept + [i for i in range(4) if i not in kept][: 2 - len(kept)])


def _base(exponents: list[int]) -> int:
    held = [sum(base < each <= base + 15 for each in exponents) for base in range(240)]
    return held.index(max(held))


def pack(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """Packs element by element."""
    rows, columns = weight.shape
    down, across = -(-rows // 16), -(-columns // 256)
    two_of_four = scheme.values["two_of_four"]
    in_slots: list[list[list[int]]] = [[[] for _ in range(across)] for _ in range(down)]
    order, far, bases = [], set(), []
    halves = [[0] * (across * 256) for _ in range(down * 16)]
    lines = (weight.contiguous().view(torch.int16).long() & 0xFFFF).tolist()
    for row, line in enumerate(lines):
        base = _base([bits >> 7 & 255 for bits in line if bits & 0x7FFF])
        bases.append(base)
        for column, bits in enumerate(line):
            code, half = (bits >> 7 & 255) - base, bits & 0x807F
            if 1 <= code <= 15:
                halves[row][column] = half | code << 7
            elif not bits & 0x7FFF:
                halves[row][column] = 0 if two_of_four else half
            else:
                order.append((row, column, bits))
                value = _scaled(bits, base)
                if value is None:
                    far.add((row, column))
                else:
                    slot = value << 16 | row % 16 << 8 | column % 256
                    in_slots[row // 16][column // 256].append(slot)
    units = [[[0] * (896 if two_of_four else 1536) for _ in range(across)] for _ in range(down)]
    for row, column in itertools.product(range(down * 16), range(0, across * 256, 4)):
        unit, first = units[row // 16][column // 256], column % 256
        stored = list(enumerate(halves[row][column : column + 4], first))
        if two_of_four:
            low, high = _kept([half for _, half in stored])
            stored = [(first // 2, stored[low][1]), (first // 2 + 1, stored[high][1])]
            word, shift = _four(row % 16, first)
            unit[word] |= (low | high << 2) << shift
        for place, half in stored:
            for bit, word, to in places(row % 16, place):
                unit[word] |= (half >> bit & 1) << to
    counts = [len(unit) for line in in_slots for unit in line]
    most = next((n for n in (4, 8) if sum(c > n for c in counts) < 0.01 * len(counts)), 16)
    taken: dict[tuple[int, int], int] = {}
    listed, offsets = [], [0] * (down + 1)
    for row, column, bits in order:
        where = row // 16, column // 256
        if (row, column) not in far:
            taken[where] = taken.get(where, 0) + 1
            if taken[where] <= most:
                continue
        listed.append([column, bits << 16 | row % 65536])
        for later in range(row // 16 + 1, down + 1):
            offsets[later] += 1
    room = max(64, down * across // 16)
    while room < len(listed):
        room *= 2
    slots = [[(unit + [0] * most)[:most] for unit in line] for line in in_slots]
    scales = torch.tensor([2.0 ** (base - 112) for base in bases], dtype=torch.float64)
    return {
        "units": _words(units),
        "row_scales": scales.float()[:, None],
        "slots": _words(slots),
        "listed": _words(listed + [[0, 0]] * (room - len(listed))),
        "listed_offsets": torch.tensor(offsets, dtype=torch.int32),
    }


def unpack(packed: PackedWeight) -> Tensor:
    """Unpacks element by element."""
    (rows, columns), tensors = packed.shape, packed.tensors
    units = (tensors["units"].long() & 0xFFFFFFFF).tolist()
    bases = [round(math.log2(scale)) + 112 for scale in tensors["row_scales"][:, 0].tolist()]
    weight = [[0] * columns for _ in range(rows)]
    two_of_four = packed.scheme.values["two_of_four"]
    for row in range(rows):
        for column in range(columns):
            unit, place, half = units[row // 16][column // 256], column % 256, 0
            if two_of_four:
                word, shift = _four(row % 16, place // 4 * 4)
                pair = unit[word] >> shift & 15
                if column % 4 not in (pair & 3, pair >> 2):
                    continue
                place = place // 4 * 2 + (column % 4 == pair >> 2)
            for bit, word, at in places(row % 16, place):
                half |= (unit[word] >> at & 1) << bit
            code = half >> 7 & 15
            weight[row][column] = half & 0x807F | (code + bases[row] if code else 0) << 7
    for down, line in enumerate((tensors["slots"].long() & 0xFFFFFFFF).tolist()):
        for across, unit in enumerate(line):
            for slot in filter(None, unit):
                row, column = down * 16 + (slot >> 8 & 15), across * 256 + (slot & 255)
                weight[row][column] = _bits(slot >> 16, bases[row])
    offsets = tensors["listed_offsets"].tolist()
    listed = (tensors["listed"].long() & 0xFFFFFFFF).tolist()
    for down in range(len(offsets) - 1):
        for column, value in listed[offsets[down] : offsets[down + 1]]:
            weight[down * 16 + value % 16][column] = value >> 16
    return _words(weight, torch.int16, 16).view(torch.bfloat16)


def _scaled(bits: int, base: int) -> int | None:
    """A weight over the scale of its row, as the bits of a bfloat16; None where it is far."""
    exponent, fraction = bits >> 7 & 255, bits & 127
    if exponent == 255:
        return bits
    if exponent == 0:  # fraction * 2^-133: 1.f * 2^exponent
        shift = 8 - fraction.bit_length()
        exponent, fraction = 1 - shift, (fraction << shift) & 127
    exponent += 112 - base
    if not (64 if base > 112 else 1) <= exponent <= 127 + 63:
        return None
    return bits & 0x8000 | exponent << 7 | fraction


def _bits(scaled: int, base: int) -> int:
    """The inverse of `_scaled`."""
    exponent, fraction = scaled >> 7 & 255, scaled & 127
    if exponent == 255:
        return scaled
    exponent += base - 112
    if exponent < 1:
        exponent, fraction = 0, (fraction | 128) >> (1 - exponent)
    return scaled & 0x8000 | exponent << 7 | fraction


def _words(numbers: list, dtype: torch.dtype = torch.int32, bits: int = 32) -> Tensor:
    words = torch.tensor(numbers, dtype=torch.int64)
    return torch.where(words >= 1 << bits - 1, words - (1 << bits), words).to(dtype)
