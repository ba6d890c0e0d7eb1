# SPDX-License-Identifier: Apache-2.0
"""What both forms have in common: values and scales of 16 rows side by side, and their check.

Their tensors are those of nm_vector in another order, which are found again without unpacking.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import FormatError, PackedWeight, Scheme, TensorSpec
from ...values.dtypes import magnitudes, value_bits
from ...values.types import ValueType, require_scales, scale_count, scale_dtype
from ..options import PatternOptions, options_of, pack_positions

ROWS = 16  # of a panel
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def by_panel(rows: Tensor) -> Tensor:
    """[rows, length] to [panels, length, 16], with zeros for the rows that are missing."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
    return padded.view(-1, ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def by_row(panels: Tensor, rows: int) -> Tensor:
    """The inverse of `by_panel`."""
    return panels.transpose(1, 2).flatten(0, 1)[:rows].contiguous()


def decode_panels(codes: Tensor, values: ValueType, kept: int) -> Tensor:
    """Codes [panels, steps, 16] as float16 numbers [panels, kept, 16]."""
    rows = codes.transpose(1, 2).flatten(0, 1).contiguous()
    return values.decode(rows, kept).view(len(codes), ROWS, kept).transpose(1, 2)


def value_specs(scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
    """`values` and, of codes, `scales`."""
    options, panels = options_of(scheme), -(-shape[0] // ROWS)
    kept, values = options.kept(shape[1]), options.value_type
    if values is None:
        return {"values": TensorSpec(value_bits(scheme.dtype), (panels, kept, ROWS))}
    scales = (panels, scale_count(shape[1], options.group), ROWS)
    return {
        "values": TensorSpec(torch.uint8, (panels, values.code_bytes(kept), ROWS)),
        "scales": TensorSpec(scale_dtype(scheme.dtype, options.group), scales),
    }


def stored_of(packed: PackedWeight, positions: Tensor) -> dict[str, Tensor]:
    """The tensors of nm_vector.

    Args:
        packed: A weight in one of the forms.
        positions: Of its entries inside their windows, uint8 [groups of rows, kept].
    """
    options, rows = options_of(packed.scheme), packed.shape[0]
    tensors = {
        "weight_packed": by_row(packed.tensors["values"], rows),
        "weight_index": pack_positions(positions, options.index_bits),
    }
    if options.value_type:
        tensors["weight_scale"] = by_row(packed.tensors["scales"], rows)
    return tensors


def require_panel_scales(packed: PackedWeight) -> None:
    """Raises FormatError unless codes have scales that can be multiplied with them."""
    if values := options_of(packed.scheme).value_type:
        require_scales(packed.tensors["scales"].detach().cpu(), values, packed.dtype, "scales")


def require_values(values: Tensor, options: PatternOptions, beyond: Tensor, rows: int) -> None:
    """Raises FormatError for a code that is NaN, and for a nonzero beyond the weight's edge.

    The latter would meet a zero, which an infinity makes NaN of.

    Args:
        values: Of some panels, on a CPU.
        options: Of the scheme.
        beyond: Whether an entry lies beyond the last column: bool [panels, kept, 1 or 16].
        rows: How many rows the last of these panels has.
    """
    if options.value_type is None:
        nonzero = magnitudes(values) != 0
    else:
        numbers = decode_panels(values, options.value_type, beyond.shape[1])
        if bool(numbers.isnan().any()):
            raise FormatError("values has a code that is NaN")
        nonzero = numbers != 0
    if bool((nonzero & beyond).any() | nonzero[-1, :, rows:].any()):
        raise FormatError("values has a nonzero beyond the weight's edge")


def count_nonzeros(packed: PackedWeight) -> int:
    """Entries other than zero, by their bits or codes."""
    options, values = options_of(packed.scheme), packed.tensors["values"]
    if options.value_type is None:
        return int(magnitudes(values).count_nonzero())
    kept = options.kept(packed.shape[1])
    return int(decode_panels(values, options.value_type, kept).count_nonzero())
