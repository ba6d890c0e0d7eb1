# SPDX-License-Identifier: Apache-2.0
"""Vector-wise N:M sparsity, whatever the layout: the options, and what follows from them alone.

NM-SpMM (Ma et al., 2025), section II: of every window of M columns N are kept, the same ones in L
consecutive rows, the paper's vector length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from ...ops import ops, where_kernels_are
from ...ops.packed_linear import X_SCALES
from ...packed import FormatError, Scheme, rules
from ..values.quantization import SCALE, ValueOptions
from ..values.types import GROUPS, VALUE_TYPES, Activations, Values

VECTOR_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)

_NAMED = re.compile(r"(\d+):(\d+)(?:-L(\d+))?(?:-([a-z]\w*))?", re.ASCII | re.IGNORECASE)
NAMED_VALUES = {key: name for name in VALUE_TYPES for key in (name.partition("_")[0], name)}
EXACT = "e4m7"
"""What short names call bf16 values in 12 bits: 4 bits of exponent, 7 of fraction, and a sign."""


def exact_options_named(text: str) -> dict[str, Any] | None:
    """Reads N:M-e4m7 or N:M-LROWS-e4m7, the options of exact_nm; None for any other name."""
    pattern, _, values = text.rpartition("-")
    return options_named(pattern) if values.lower() == EXACT else None


def options_named(text: str) -> dict[str, Any] | None:
    """Reads N:M, N:M-LROWS, N:M-VALUES or N:M-LROWS-VALUES; None for what begins otherwise.

    None for names of exact_nm, too (`exact_options_named`).

    Raises:
        FormatError: For anything else that begins with N:M.
    """
    if re.match(r"\d+:\d", text, re.ASCII) is None or exact_options_named(text):
        return None
    found = _NAMED.fullmatch(text)
    values = NAMED_VALUES.get(found[4].lower()) if found and found[4] else None
    if found is None or (found[4] and values is None):
        raise FormatError(
            f"{text!r} is not a pattern: write N:M, with -L and the rows that share it, and -"
            f"{', -'.join(key for key in NAMED_VALUES if key.isalnum())} or -{EXACT} for values "
            "of fewer bits, "
            "such as 2:4, 2:4-int8 or 8:32-L32-int8"
        )
    named: dict[str, Any] = {"n": int(found[1]), "m": int(found[2])}
    named |= {"vector_length": int(found[3])} if found[3] else {}
    return named | ({"values": values} if found[4] else {})


class PatternOptions(ValueOptions):
    """Options of every format and form that holds an N:M pattern.

    Attributes:
        n: Columns kept of each window.
        m: Columns of a window.
        vector_length: Consecutive rows that share the choice (L); a power of two.
        values, group, activations: Of values; see `ValueOptions`.
    """

    n: int = Field(ge=1, le=256)
    m: int = Field(ge=1, le=256)
    vector_length: int = Field(default=1, ge=1, le=128)
    values: Values = "native"
    group: int | None = None
    activations: Activations = "native"

    @model_validator(mode="after")
    def _be_a_pattern(self) -> PatternOptions:
        if self.n > self.m:
            raise ValueError(f"{self.n}:{self.m} is no pattern: n must not be more than m")
        if self.vector_length not in VECTOR_LENGTHS:
            raise ValueError(
                f"option vector_length: {self.vector_length} is not a power of two up to 128"
            )
        if self.group is None:
            return self
        if self.values == "native":
            raise ValueError("option group: native values have no scales. Remedy: values=int8")
        if self.group not in GROUPS or self.group % self.m:
            raise ValueError(
                f"option group: {self.group} must be {', '.join(map(str, GROUPS[:-1]))} or "
                f"{GROUPS[-1]}, and a multiple of m, which is {self.m}"
            )
        return self

    @property
    def group_entries(self) -> int | None:
        """Kept entries of a row that share a scale; None: all of them."""
        return self.group and self.group // self.m * self.n

    def kept(self, in_features: int) -> int:
        """Entries that a row has: n for each window, the last one included."""
        return -(-in_features // self.m) * self.n

    def groups(self, out_features: int) -> int:
        """Groups of rows that share their columns."""
        return -(-out_features // self.vector_length)

    @property
    def index_bits(self) -> int:
        """Bits of a position inside a window."""
        return max(1, (self.m - 1).bit_length())

    def index_bytes(self, in_features: int) -> int:
        """Bytes of the positions of a group."""
        return -(-self.kept(in_features) * self.index_bits // 8)

    @property
    def keeps_all(self) -> bool:
        """Whether every element is kept, so that positions say nothing."""
        return self.n == self.m

    @property
    def grain(self) -> tuple[int, int]:
        """Rows and columns at whose multiples a weight can be cut."""
        return 1 if self.keeps_all else self.vector_length, self.group or self.m

    @property
    def numbers(self) -> tuple[int, int, int]:
        """n, m and vector_length, as ops take them."""
        return self.n, self.m, self.vector_length

    @property
    def embeds_in_24(self) -> bool:
        """Whether of each 4 aligned columns at most 2 are kept, as sparse tensor cores want it."""
        return (self.m % 4 == 0 and self.n <= 2) or (self.n, self.m) == (1, 2)

    def keep_largest(self, weight: Tensor) -> Tensor:
        """Sets to zero what the pattern cannot keep; it keeps the vectors with the largest sums.

        Args:
            weight: [out_features, in_features], finite.

        Returns:
            A weight that follows the pattern.
        """
        rows, columns = weight.shape
        groups, length = self.groups(rows), self.vector_length
        padded = F.pad(weight.abs().float(), (0, -columns % self.m, 0, groups * length - rows))
        scores = padded.view(groups, length, -1, self.m).sum(1)
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept.scatter_(2, scores.topk(self.n, dim=2).indices, True)
        rows_kept = kept.view(groups, 1, -1).expand(-1, length, -1).reshape(groups * length, -1)
        return weight.where(rows_kept[:rows, :columns], torch.zeros_like(weight))

    @property
    def title(self) -> str:
        """ "2:4", "8:32, L=32, int8 by 128", or "2:4, int8 x int8" of rounded activations."""
        length = f", L={self.vector_length}" if self.vector_length > 1 else ""
        group = f" by {self.group}" if self.group else ""
        values = "" if self.values == "native" else f", {self.values}{group}"
        values += "" if self.activations == "native" else f" x {self.activations}"
        return f"{self.n}:{self.m}{length}{values}"


def columns_used(weight: Tensor, m: int, length: int, enough: int) -> int:
    """The most columns that a window of `m` columns and `length` rows has values in.

    Args:
        weight: [out_features, in_features].
        m: Columns of a window.
        length: Consecutive rows that share the choice.
        enough: Rows are looked at until a window has values in more columns than that.
    """

    def used(rows: Tensor) -> int:
        padded = F.pad(rows != 0, (0, -rows.shape[1] % m, 0, -len(rows) % length))
        return int(padded.view(-1, length, padded.shape[1] // m, m).any(1).sum(2).max())

    step, most = max(1, (1 << 22) // (weight.shape[1] * length)) * length, 0
    for rows in weight.split(step):
        most = max(most, used(rows))
        if most > enough:
            break
    return most


def unpack_positions(weight_index: Tensor, kept: int, bits: int) -> Tensor:
    """Positions of all entries, from their bits.

    Args:
        weight_index: uint8 [groups, bytes], as nm_vector stores it.
        kept: Entries of a group.
        bits: Bits of an entry, 1 to 8.

    Returns:
        uint8 [groups, kept], on the device of `weight_index`.
    """
    if bits == 8:
        return weight_index[:, :kept]
    # 8 entries take `bits` bytes: each is cut out of the two bytes that it may lie in.
    eights = -(-kept // 8)
    padded = F.pad(weight_index, (0, eights * bits - weight_index.shape[1]))
    chunks = padded.view(len(weight_index), eights, bits).to(torch.int16)
    entries = []
    for entry in range(8):
        byte, shift = divmod(entry * bits, 8)
        word = chunks[:, :, byte]
        if shift + bits > 8:
            word = word | chunks[:, :, byte + 1] << 8
        entries.append((word >> shift & ((1 << bits) - 1)).to(torch.uint8))
    return torch.stack(entries, 2).view(len(weight_index), -1)[:, :kept]


def pack_positions(positions: Tensor, bits: int) -> Tensor:
    """The inverse of `unpack_positions`.

    Args:
        positions: uint8 [groups, kept].
        bits: Bits of a position, 1 to 8.

    Returns:
        uint8 [groups, bytes], on the device of `positions`.
    """
    if bits == 8:
        return positions.contiguous()
    kept = positions.shape[1]
    eights = F.pad(positions, (0, -kept % 8)).unflatten(1, (-1, 8)).to(torch.int64)
    words = eights[..., 0].clone()
    for entry in range(1, 8):
        words |= eights[..., entry] << entry * bits
    chunks = words[..., None].view(torch.uint8)[..., :bits]  # low bytes first
    return chunks.flatten(1)[:, : -(-kept * bits // 8)].contiguous()


def options_of(scheme: Scheme) -> PatternOptions:
    """The pattern of a scheme whose format holds patterns."""
    assert isinstance(scheme.options, PatternOptions)
    return scheme.options


def value_arguments(
    scheme: Scheme, tensors: Mapping[str, Tensor]
) -> tuple[Tensor | str | int | None, ...]:
    """How values are stored, as ops take it last: scales of rows or None, the type, and the group.

    Behind them the scales of quantized activations, where there are any.

    Nothing where they are stored as they are, which is what ops take for granted: each argument
    costs a call half a microsecond.

    Args:
        scheme: With a pattern.
        tensors: The packed tensors by name.
    """
    found = scheme.quantization
    if found is None:
        return ()
    stored = (tensors.get(SCALE), found.values, found.group or 0)
    return (*stored, tensors[X_SCALES]) if X_SCALES in tensors else stored


def conform_to(options: PatternOptions, weight: Tensor) -> Tensor:
    """A weight like the given one that a scheme with these options holds exactly."""
    kept = options.keep_largest(weight)
    return kept if options.quantization is None else options.quantization.conform(kept)


def store(weight: Tensor, options: PatternOptions) -> dict[str, Tensor]:
    """The tensors of nm_vector for a weight, quantised where the options say so.

    Args:
        weight: [out_features, in_features], float16, bfloat16 or float32.
        options: The pattern, which the weight must follow, and the type of its values.

    Returns:
        By name, on the device of the weight: weight_packed, weight_index and, for codes,
        weight_scale.

    Raises:
        FormatError: Where the weight does not follow the pattern, naming the first place, or has
            values that codes cannot hold.
    """
    if options.quantization:
        return store_codes(*options.quantization.quantise(weight.detach()), options)
    with rules():
        dense = where_kernels_are(weight.detach())
        packed, index = ops.nm_vector_pack(dense, *options.numbers)
    return {"weight_packed": packed.to(weight.device), "weight_index": index.to(weight.device)}


def store_codes(codes: Tensor, scales: Tensor, options: PatternOptions) -> dict[str, Tensor]:
    """The tensors of nm_vector for codes, which stay as they are.

    Args:
        codes: float16 numbers [out_features, in_features], zeros included.
        scales: [out_features, groups].
        options: The pattern, which the codes must follow, and their type.

    Returns:
        As `store` does, on the device of the codes.
    """
    values, device = options.value_type, codes.device
    assert values is not None
    if options.keeps_all:
        kept = F.pad(codes, (0, -codes.shape[1] % options.m))
        index = all_positions(options, codes.shape[0], codes.shape[1], device)
        return {"weight_packed": values.encode(kept), "weight_index": index, "weight_scale": scales}
    with rules():
        kept, index = ops.nm_vector_pack(where_kernels_are(codes), *options.numbers)
    packed = values.encode(kept.to(device).view(torch.float16))
    return {"weight_packed": packed, "weight_index": index.to(device), "weight_scale": scales}


def all_positions(options: PatternOptions, rows: int, columns: int, device: torch.device) -> Tensor:
    """weight_index of nm_vector where every element is kept."""
    positions = torch.arange(options.kept(columns), device=device) % options.m
    line = pack_positions(positions.to(torch.uint8)[None], options.index_bits)
    return line.expand(options.groups(rows), -1).contiguous()


def stored_codes(
    stored: Mapping[str, Tensor], options: PatternOptions, shape: tuple[int, int]
) -> Tensor:
    """The inverse of `store_codes`: codes as float16 numbers, zeros included.

    Args:
        stored: The tensors of nm_vector by name.
        options: The pattern, and the type of its values.
        shape: (out_features, in_features).
    """
    own = [where_kernels_are(stored[name].detach()) for name in ("weight_packed", "weight_index")]
    numbers = (*shape, *options.numbers)
    codes = ops.nm_vector_unpack(*own, *numbers, torch.float16, None, options.values)
    return codes.to(stored["weight_packed"].device)
