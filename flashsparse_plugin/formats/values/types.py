# SPDX-License-Identifier: Apache-2.0
"""Value types: how kept values are stored in fewer than 16 bits, as codes with scales.

A weight is code x scale, one scale for a row or for a group of columns of a row: the product in
float32, rounded to the dtype of the scheme. Codes are symmetric, and zero is code 0. A type is a
row of `VALUE_TYPES` and a name here, and its oracle is in reference.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ...packed import FormatError, dtype_name

GROUPS = (32, 64, 128)
_CLIPS = 12  # ratios that are tried
_SQUARE = 2.0**12  # in which parts squares of codes are counted
# Elements of a weight that are quantised at a time: what a core's cache holds, and a GPU's memory.
_SLABS = {"cpu": 1 << 18, "cuda": 1 << 24}

Values = Literal["native", "fp8_e4m3", "int8", "int4"]
"""What the option `values` of a scheme may be."""

Activations = Literal["native", "fp8_e4m3", "int8"]
"""What the option `activations` may be."""


@dataclass(frozen=True)
class ValueType:
    """A type of codes.

    Attributes:
        name: As the option `values` of a scheme has it.
        bits: Of a code: 8 or 4. Codes of 4 bits lie two to a byte, the first in the low nibble.
        least: The smallest code, as a number.
        most: The largest one.
        clip: The smallest clipping ratio that is worth a try.
        dtype: Torch's dtype for a code in a byte of its own.
        signs_scales: Whether `quantise` makes scales negative where that gives the largest weight
            of a group the code `least`, which is further from zero than `most`. Of 16 codes the
            one that is gained this way is worth 5% of the error.
    """

    name: str
    bits: int
    least: float
    most: float
    clip: float
    dtype: torch.dtype
    signs_scales: bool = False

    @property
    def extreme(self) -> float:
        """The code that a scale without clipping gives the largest weight."""
        return self.least if self.signs_scales else self.most

    @property
    def clips(self) -> tuple[float, ...]:
        """Clipping ratios: of the scale that holds the largest weight, shares to be tried."""
        return tuple(self.clip ** (i / (_CLIPS - 1)) for i in range(_CLIPS))

    @property
    def is_integer(self) -> bool:
        return not self.dtype.is_floating_point

    @property
    def shares_bytes(self) -> bool:
        """Whether a byte holds two codes."""
        return self.bits < 8

    def code_bytes(self, entries: int) -> int:
        """Bytes that the codes of so many entries take."""
        return -(-entries * self.bits // 8)

    def round(self, numbers: Tensor) -> Tensor:
        """The nearest codes to some float32 numbers, as float32 numbers; ties to even."""
        clipped = numbers.clamp(self.least, self.most)
        return clipped.round() if self.is_integer else clipped.to(self.dtype).float()

    def encode(self, numbers: Tensor) -> Tensor:
        """Bits of codes [rows, entries] given as numbers: uint8 [rows, code_bytes(entries)]."""
        if not self.is_integer:
            numbers = torch.where(numbers == 0, 0.0, numbers)  # there is no -0
        codes = numbers.to(self.dtype).view(torch.uint8)
        if not self.shares_bytes:
            return codes
        return join_nibbles(F.pad(codes, (0, codes.shape[1] % 2)))

    def decode(self, codes: Tensor, entries: int) -> Tensor:
        """The inverse of `encode`: float16 numbers [rows, entries], which hold every code."""
        return self.numbers(self.spread(codes, entries))

    def spread(self, codes: Tensor, entries: int) -> Tensor:
        """Codes as `encode` gives them, a byte each: uint8 [..., entries] of `dtype`'s bits."""
        if not self.shares_bytes:
            return codes
        return (split_nibbles(codes)[..., :entries] ^ 8) - 8

    def numbers(self, codes: Tensor) -> Tensor:
        """Codes in bytes of their own, as float16 numbers.

        Args:
            codes: uint8 [..., entries], of `dtype`'s bits.
        """
        return codes.view(self.dtype).to(torch.float16)

    def magnitudes(self, codes: Tensor) -> Tensor:
        """Bits of codes in bytes of their own, 0 for any zero."""
        return codes if self.is_integer else codes & 0x7F

    def has_nan(self, codes: Tensor) -> bool:
        """Whether one of some codes in bytes of their own is no number."""
        return not self.is_integer and bool((codes & 0x7F == 0x7F).any())


VALUE_TYPES = {
    each.name: each
    for each in (
        ValueType("fp8_e4m3", 8, -448, 448, clip=0.5, dtype=torch.float8_e4m3fn),
        ValueType("int8", 8, -128, 127, clip=0.7, dtype=torch.int8),
        ValueType("int4", 4, -8, 7, clip=0.5, dtype=torch.int8, signs_scales=True),
    )
}
SMALLEST = min(VALUE_TYPES.values(), key=lambda values: values.bits)
"""The type with the fewest bits."""


def split_nibbles(codes: Tensor) -> Tensor:
    """Both nibbles of each byte [..., n], the low one first: uint8 [..., 2 n], 0 to 15."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def join_nibbles(codes: Tensor) -> Tensor:
    """The inverse of `split_nibbles`, of the low nibbles of some bytes."""
    return codes[..., ::2] & 15 | codes[..., 1::2] << 4


def scale_dtype(dtype: torch.dtype, group: int | None) -> torch.dtype:
    """Dtype of scales: float32 for rows, that of the weight for groups, which have many."""
    return torch.float32 if group is None else dtype


def scale_count(in_features: int, group: int | None) -> int:
    """Scales of a row."""
    return 1 if group is None else -(-in_features // group)


def spread_scales(scales: Tensor, in_features: int, group: int | None) -> Tensor:
    """The scale of every column: [rows, in_features], or [rows, 1] where rows have one."""
    return scales if group is None else scales.repeat_interleave(group, 1)[:, :in_features]


def quantise(weight: Tensor, values: ValueType, group: int | None) -> tuple[Tensor, Tensor]:
    """Rounds a weight to the nearest codes, by the scales of the least squared error.

    Of the type's clipping ratios the best one is taken for every row or group, and then the
    scale that suits its codes best, if that is better. Zeros stay zero. Sums are exact, so that
    every device finds the same codes and scales, in whatever order it adds.

    Args:
        weight: [out_features, in_features], of a floating dtype.
        values: The type of the codes.
        group: Columns of a row that share a scale; None: all of them.

    Returns:
        Codes as float16 numbers [out_features, in_features], which are weight / scale rounded to
        nearest, and scales [out_features, groups] of
        `scale_dtype`, on the device of the weight.

    Raises:
        FormatError: For a weight with NaN or an infinity, which no scale can hold.
    """
    if not bool(weight.isfinite().all()):
        raise FormatError(
            f"a weight of shape {list(weight.shape)} has NaN or infinite values, which "
            f"{values.name} cannot hold. Remedy: values=native"
        )
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float16, device=weight.device)
    stored = scale_dtype(weight.dtype, group)
    scales = torch.empty(rows, scale_count(columns, group), dtype=stored, device=weight.device)
    step = max(_SLABS.get(weight.device.type, 1 << 24) // columns, 1)
    for first in range(0, rows, step):
        slab = slice(first, first + step)
        codes[slab], scales[slab] = _quantise(weight[slab].float(), values, group, stored)
    return codes, scales


def _quantise(
    weight: Tensor, values: ValueType, group: int | None, stored: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    width = columns if group is None else group
    parts = F.pad(weight, (0, -columns % width)).view(rows, -1, width)
    greatest = _largest(parts)
    # By a tensor: torch divides by a number with two roundings on a GPU.
    extreme = torch.full_like(greatest, values.extreme)
    unclipped = (greatest if values.signs_scales else greatest.abs()) / extreme
    units = _units(greatest.abs(), width)
    best = _stored(unclipped, stored)
    error = _error(parts, best, values, units)
    for clip in values.clips[1:]:
        scale = _stored(unclipped * clip, stored)
        best, error = _better(best, error, scale, _error(parts, scale, values, units))
    # Of these codes there is a scale that is better still.
    codes = values.round(parts / best)
    products, squares = parts.mul(units).mul_(codes), codes.square().mul_(_SQUARE)
    scale = _exact_sum(products) / _exact_sum(squares) * _SQUARE / units
    scale = _stored(scale.nan_to_num(1.0).float(), stored)
    best, _ = _better(best, error, scale, _error(parts, scale, values, units))
    best = best.where(greatest != 0, 1.0)  # of nothing but zeros
    codes = values.round(parts / best)
    return codes.view(rows, -1)[:, :columns].to(torch.float16), best.squeeze(2).to(stored)


def _largest(parts: Tensor) -> Tensor:
    """The number of the largest magnitude in each group [..., 1], the positive one of two alike."""
    least, most = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
    return torch.where(-least > most, least, most)


def _stored(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales rounded to a dtype, float32; none is zero, which would lose what it multiplies."""
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    rounded = scales.to(dtype).float()
    return torch.copysign(rounded.abs().clamp_min(least), rounded)


def _error(parts: Tensor, scale: Tensor, values: ValueType, units: Tensor) -> Tensor:
    """The squared error of the nearest codes, counted in units."""
    wrong = values.round(parts / scale).mul_(scale).sub_(parts).mul_(units).square_()
    return _exact_sum(wrong)


def _units(greatest: Tensor, width: int) -> Tensor:
    """By which errors are multiplied before they are squared and counted.

    Powers of two, so that nothing is rounded, as large as `_exact_sum` allows.

    Args:
        greatest: Largest magnitudes of groups, float32.
        width: Numbers of a group.
    """
    greatest = greatest.clamp_min(2.0**-100)
    powers = greatest / (2 * torch.frexp(greatest).mantissa)  # the last power of two up to it
    return 2.0 ** ((50 - width.bit_length()) // 2) / powers  # of errors up to 2 powers


def _exact_sum(terms: Tensor) -> Tensor:
    """Sums over the last dimension, float64 [..., 1], the same in any order of additions.

    Args:
        terms: float32 numbers, of which whole ones are counted: rounded in place. float64 holds all
            whole numbers up to 2^53, which is more than the sum may be.
    """
    return terms.round_().sum(-1, keepdim=True, dtype=torch.float64)


def _better(best: Tensor, error: Tensor, scale: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Of two scales for each group the better one, and its error."""
    better = other < error
    return torch.where(better, scale, best), torch.where(better, other, error)


def to_codes(weight: Tensor, values: ValueType, group: int | None) -> Tensor:
    """A weight like the given one that `quantise` holds exactly; for self-tests and tuning.

    Args:
        weight: [out_features, in_features], finite.
        values: The type of the codes.
        group: Columns of a row that share a scale; None: all of them.
    """
    rows, columns = weight.shape
    width = columns if group is None else group
    parts = F.pad(weight.float(), (0, -columns % width)).view(rows, -1, width)
    largest = _largest(parts)
    scale = torch.exp2((largest.abs() / abs(values.extreme)).clamp_min(2.0**-12).log2().ceil())
    if values.signs_scales:
        scale = torch.copysign(scale, -largest)
    # The largest weight has the extreme code in every group, so that its scale is found again.
    extreme = values.extreme if values.signs_scales else torch.sign(largest) * values.extreme
    codes = torch.where(parts == largest, extreme, values.round(parts / scale))
    codes = codes.where(largest != 0, 0.0)
    like = (codes * scale + 0.0).view(rows, -1)[:, :columns]  # -0 + 0 is +0
    return like.to(weight.dtype).contiguous()


def require_scales(
    scales: Tensor, values: ValueType, dtype: torch.dtype, where: str = "weight_scale"
) -> None:
    """Raises FormatError unless scales are finite, and no product with a code overflows."""
    if not bool(scales.isfinite().all()):
        raise FormatError(f"{where} must be finite")
    largest = float(scales.abs().max())
    most = largest * max(-values.least, values.most)
    if most > torch.finfo(dtype).max:
        fits = most <= torch.finfo(torch.bfloat16).max
        raise FormatError(
            f"{where} goes up to {largest:.3g}, by which the largest {values.name} "
            f"code is {most:.3g}: too large for {dtype_name(dtype)}"
            f"{'. Remedy: dtype bfloat16' if fits else ' and every other dtype'}"
        )
