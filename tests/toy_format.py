# SPDX-License-Identifier: Apache-2.0
"""A format that only the tests know, and that differs from ours in every way the seam allows.

Options with bounds (`group` has no default), float32 values, a float scale beside the values, a
pattern (the rows of a group keep the same columns), a runtime form of its own on every device, cuts
between groups of rows and nowhere else, two implementations and no cost model. In pure torch.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.packed import Format, FormatError, Options, PackedWeight, TensorSpec
from flashsparse_plugin.plan import Implementation


def grouped(weight: Tensor, group: int) -> Tensor:
    """[groups, group, columns], with rows of zeros at the end where they are missing."""
    padded = F.pad(weight, (0, 0, 0, -len(weight) % group))
    return padded.view(-1, group, weight.shape[1])


class Reference:
    """Written with loops, apart from the format."""

    @staticmethod
    def pack(weight, scheme):
        masks, values, scales = [], [], []
        for rows in weight.split(scheme.options.group):
            kept = [bool((rows[:, c] != 0).any()) for c in range(rows.shape[1])]
            halves = torch.equal((rows / 2 * 2).nan_to_num(), rows.nan_to_num())
            scales.append(2.0 if halves else 1.0)
            masks.append(torch.tensor(kept))
            values.append((rows / scales[-1])[:, kept].flatten())
        integer = {2: torch.int16, 4: torch.int32}[weight.dtype.itemsize]
        return {
            "toy_values": torch.cat(values).view(integer),
            "toy_mask": torch.stack(masks),
            "toy_scale": torch.tensor(scales),
        }

    @staticmethod
    def unpack(packed):
        group, (rows, columns) = packed.scheme.options.group, packed.shape
        weight, taken = torch.zeros(rows, columns, dtype=packed.dtype), 0
        values = packed.tensors["toy_values"].view(packed.dtype)
        for i, mask in enumerate(packed.tensors["toy_mask"]):
            own = weight[i * group : (i + 1) * group]
            count = len(own) * int(mask.sum())
            part = values[taken : taken + count].view(len(own), -1)
            own[:, mask] = part * packed.tensors["toy_scale"][i].to(packed.dtype)
            taken += count
        return weight


class ToyOptions(Options):
    group: int = Field(ge=1, le=64)
    label: str = "plain"


class Toy(Format):
    name = "toy"
    version = 3
    dtypes = (torch.float32, torch.bfloat16)
    Options = ToyOptions
    tensor_names = ("toy_values", "toy_mask", "toy_scale")
    reference = Reference

    def examples(self):
        return tuple(self.scheme(d, {"group": g}) for d in self.dtypes for g in (1, 4))

    def tensors(self, scheme, shape):
        groups = -(-shape[0] // scheme.options.group)
        integer = {2: torch.int16, 4: torch.int32}[scheme.dtype.itemsize]
        return {
            "toy_values": TensorSpec(integer, (None,)),
            "toy_mask": TensorSpec(torch.bool, (groups, shape[1])),
            "toy_scale": TensorSpec(torch.float32, (groups,)),
        }

    def conform(self, weight, scheme):
        groups = grouped(weight, scheme.options.group)
        kept = (groups != 0).float().mean(1, keepdim=True) > 0.5
        filled = torch.where(groups == 0, torch.ones_like(groups), groups)
        return torch.where(kept, filled, torch.zeros_like(filled)).view(-1, weight.shape[1])[
            : len(weight)
        ]

    def pack(self, weight, scheme):
        self.require_weight(weight, scheme)
        groups = grouped(weight, scheme.options.group)
        zero = groups == 0
        # Rows beyond the last are zero everywhere, and no break of the pattern.
        real = grouped(torch.ones_like(weight, dtype=torch.bool), scheme.options.group)
        mixed = ((zero & real).any(1) & (~zero).any(1)).any(1)
        if bool(mixed.any()):
            raise FormatError(
                f"rows from {int(mixed.nonzero()[0]) * scheme.options.group} on do not keep the "
                "same columns: prune them together"
            )
        masks = (~zero).any(1)
        halves = ((groups / 2 * 2).nan_to_num() == groups.nan_to_num()).flatten(1).all(1)
        scales = torch.where(halves, 2.0, 1.0)
        scaled = groups / scales[:, None, None].to(weight.dtype)
        values = scaled[(masks[:, None, :] & real).expand_as(groups)]
        specs = self.tensors(scheme, tuple(weight.shape))
        tensors = {
            "toy_values": values.view(specs["toy_values"].dtype),
            "toy_mask": masks,
            "toy_scale": scales,
        }
        return PackedWeight(scheme, tuple(weight.shape), tensors)

    def unpack(self, packed):
        group, (rows, columns) = packed.scheme.options.group, packed.shape
        masks, scales = packed.tensors["toy_mask"], packed.tensors["toy_scale"]
        real = grouped(torch.ones(rows, columns, dtype=torch.bool), group)
        groups = torch.zeros(real.shape, dtype=packed.dtype)
        groups[masks[:, None, :] & real] = packed.tensors["toy_values"].view(packed.dtype)
        groups = groups * scales[:, None, None].to(packed.dtype)
        return groups.view(-1, columns)[:rows].contiguous()

    def linear(self, x, scheme, shape, tensors, bias=None, plan=None):
        weight = self.unpack(PackedWeight(scheme, shape, tensors))
        return dense_linear(x, weight, bias)

    def check(self, packed):
        group, (rows, columns) = packed.scheme.options.group, packed.shape
        real = grouped(torch.ones(rows, columns, dtype=torch.bool), group)
        wanted = int((packed.tensors["toy_mask"][:, None, :] & real).sum())
        if len(packed.tensors["toy_values"]) != wanted:
            raise FormatError(
                f"toy_mask promises {wanted} values, toy_values has "
                f"{len(packed.tensors['toy_values'])}"
            )

    def nonzeros(self, packed):
        return int(self.unpack(packed).count_nonzero())

    def runtime(self, scheme, device):
        return ToyRuntime().scheme(scheme.dtype, {"group": scheme.options.group})

    def grain(self, scheme):
        return scheme.options.group, None

    def implementations(self, scheme):
        return {"loop": Implementation(8, "toy: a loop"), "whole": Implementation(None, "toy: all")}


class RuntimeOptions(Options):
    group: int


class ToyRuntime(Format):
    """How a toy weight runs: dense, with the options that lead back."""

    name = "toy_runtime"
    version = 1
    on_disk = False
    dtypes = Toy.dtypes
    Options = RuntimeOptions
    tensor_names = ("toy_weight",)

    def examples(self):
        return ()

    def tensors(self, scheme, shape):
        return {"toy_weight": TensorSpec(scheme.dtype, shape)}

    def pack(self, weight, scheme):
        Toy().pack(weight, Toy().scheme(scheme.dtype, {"group": scheme.options.group}))
        return PackedWeight(scheme, tuple(weight.shape), {"toy_weight": weight.clone()})

    def unpack(self, packed):
        return packed.tensors["toy_weight"].clone()

    def linear(self, x, scheme, shape, tensors, bias=None, plan=None):
        return dense_linear(x, tensors["toy_weight"], bias)

    def check(self, packed):
        pass

    def nonzeros(self, packed):
        return int(packed.tensors["toy_weight"].count_nonzero())


def dense_linear(x, weight, bias):
    y = x.float() @ weight.float().T
    return (y if bias is None else y + bias.float()).to(x.dtype)
