# SPDX-License-Identifier: Apache-2.0
"""Holds every registered op against its reference, on every device that it is implemented for.

`run` asks torch which ops there are. No op of a packed weight is listed here: its name says what it
promises (`<format>_pack`, `<format>_linear`, ...). It is called as the format calls it, by each
scheme that the format gives as an example, and held against the format's reference. Listed are ops
of other kinds: dense products, those between products, those of experts. An op whose name promises
nothing known is reported as "no self-test" rather than left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from . import selftest_experts
from .formats import all_formats
from .formats.rows import ReadsWholeRows, read_rows, row_places
from .ops import attention_reference, elementwise, ops, reference
from .packed import Format, FormatError, PackedWeight, Scheme
from .plan import LIBRARY

PASS, FAIL, NO_SELF_TEST = "PASS", "FAIL", "no self-test"

_SHAPE = (200, 150)  # several tiles, and none of them whole at the edges
_TOKENS = (1, 8, 33)  # one token, a small batch, an odd number of them
_WEIGHT_DTYPES = (torch.float16, torch.bfloat16)
_FP8_SUMS = 2.0**-13  # tensor cores of compute capability 9.0 keep 14 bits of sums of fp8
_X_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class SelfTest:
    """How one op fared.

    Attributes:
        op: Its name in `torch.ops.flashsparse`.
        device: "cpu" or "cuda".
        status: PASS, FAIL or NO_SELF_TEST.
        max_error: Largest error of one element: of a product in units of sum |x||w|, of attention
            in units of the largest value, else absolute; None where no number was computed.
        detail: What is wrong; of a sound op what its test shows beside the numbers, or empty.
        about: What it is for, in words.
    """

    op: str
    device: str
    status: str
    max_error: float | None = None
    detail: str = ""
    about: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Wrong(Exception):
    """A self-test's finding."""


# Ops that multiply nothing: how products are launched, and what planners say (ops/plan.py).
_ABOUT_LAUNCHES = {
    *("begin_early", "plan", "candidates", "choose_kernel", "launch_fields", "compiled_shapes"),
    *("known_gpu", "known_gpus", "override_launch", "end_override"),
}


def op_names() -> list[str]:
    """Names of the ops that are registered in `torch.ops.flashsparse`, sorted.

    Without those that say how products are launched.
    """
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.split("::")[1] for s in schemas if s.name.startswith("flashsparse::")}
    return sorted(names - _ABOUT_LAUNCHES)


def kernel_path() -> str | None:
    """Name of the kernels that the CPU ops chose (avx512, ...), None where they do not tell."""
    return str(ops.cpu_capability()) if "cpu_capability" in op_names() else None


def devices(op: str) -> list[str]:
    """Devices of this machine that `op` has an implementation for."""
    present = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = [device for device in present if has(f"flashsparse::{op}", device.upper())]
    return found or ["cpu"]  # an op without tensors is implemented once, for no device


def run() -> list[SelfTest]:
    """Tests every registered op."""
    found = [check(op, device) for op in op_names() for device in devices(op)]
    for test in found:
        test.about = about(test.op)
    return found


def about(op: str) -> str:
    """What an op is for, in words; its name where no words are known."""
    if op in _DENSE_TOKENS:
        return "dense layers with few tokens"
    if op.endswith("_decode"):
        return "decode attention"
    if op in _OF_EXPERTS:
        return "layers of mixtures"
    if op in _BETWEEN_PRODUCTS:
        return "norms, rotary embeddings, activations"
    if op == "cpu_capability":
        return "instructions of this CPU"
    of = [format for format in all_formats() if op.startswith(f"{format.name}_")]
    return max(of, key=lambda format: len(format.name)).in_words or op if of else op


def check(op: str, device: str = "cpu") -> SelfTest:
    """Tests one op on one device; whatever goes wrong is in the result."""
    test = _find(op)
    if test is None:
        return SelfTest(op, device, NO_SELF_TEST)
    try:
        worst = test(device)
    except _Wrong as finding:
        return SelfTest(op, device, FAIL, None, str(finding))
    except Exception as error:
        return SelfTest(op, device, FAIL, None, f"{type(error).__name__}: {error}".splitlines()[0])
    shown = "wrong phi detected, counted, recomputed" if op.endswith("_decode") else ""
    return SelfTest(op, device, PASS, worst, shown)


def _find(op: str) -> Callable[[str], float] | None:
    """What tests an op, given a device."""
    if op == "cpu_capability":
        return _capability
    if op in _DENSE_TOKENS:
        return lambda device: max(_dense(op, _weight(dtype), device) for dtype in _WEIGHT_DTYPES)
    if op in _BETWEEN_PRODUCTS:
        return lambda device: max(_between(op, dtype, device) for dtype in _WEIGHT_DTYPES)
    if op == "experts_order":
        return _experts_order
    if op in _OF_EXPERTS:
        return lambda device: _experts(op, device)
    if op.endswith("_decode"):
        name = op.removesuffix("_decode")
        return lambda device: max(_decode(name, dtype, device) for dtype in _WEIGHT_DTYPES)
    formats = {format.name: format for format in all_formats()}
    for promise, test in _PROMISES.items():
        format = formats.get(op.removesuffix(promise))
        if op.endswith(promise) and format is not None:
            own = [scheme for scheme in format.examples() if _takes(scheme, promise)]
            return lambda device: max(test(scheme, device) for scheme in own)
    source, _, target = op.partition("_to_")
    if source in formats and target in formats:
        return lambda device: _transcode(formats[source], formats[target], device)
    return None


def _takes(scheme: Scheme, promise: str) -> bool:
    """Whether there is such an op for weights of a scheme: codes want codes of 8 bits, by rows."""
    if promise == "_rows":
        return isinstance(scheme.format, ReadsWholeRows)
    if promise != "_linear_rounded":
        return True
    values = scheme.values
    of_codes = values.get("values") in ("fp8_e4m3", "int8") and not values.get("group")
    return of_codes and hasattr(ops, f"{scheme.format.name}{promise}")


def _weight(dtype: torch.dtype) -> Tensor:
    """A half-empty weight with an empty and a full tile, and values that are easy to lose."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(_SHAPE, generator=generator)
    weight[torch.rand(_SHAPE, generator=generator) < 0.5] = 0.0
    weight[:128, :64] = 0.0
    weight[128:, 64:128] = 1.5
    weight[0, 149] = -0.0
    return weight.to(dtype)


def _example(scheme: Scheme, device: str) -> tuple[Tensor, PackedWeight]:
    """A weight that a scheme can hold, and what the reference makes of it, on a device."""
    weight, packed = _stored(scheme)
    return weight, packed.to(device)


@functools.cache
def _stored(scheme: Scheme) -> tuple[Tensor, PackedWeight]:
    """Made once: references are slow."""
    weight = scheme.format.conform(_weight(scheme.dtype), scheme)
    return weight, PackedWeight(scheme, _SHAPE, scheme.format.reference.pack(weight, scheme))


def _op(name: str) -> Any:
    return getattr(ops, name)


def _on(device: str, tensors: Any) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


def _same(result: Tensor, expected: Tensor, what: str) -> float:
    """Compares bit for bit, but for the sign of zero; the error of equal tensors is 0."""
    result = result.cpu()
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise _Wrong(
            f"{what} gave {list(result.shape)} {result.dtype}, "
            f"not {list(expected.shape)} {expected.dtype}"
        )
    if not torch.equal(result, expected):
        wrong = int((result != expected).sum())
        raise _Wrong(f"{what}: {wrong} of {expected.numel()} elements differ from the reference")
    return 0.0


# ---- what a name promises -----------------------------------------------------------------------


def _pack(scheme: Scheme, device: str) -> float:
    weight, _ = _example(scheme, device)
    packed = scheme.format.pack(weight.to(device), scheme).to("cpu")
    # A format may leave its packer some freedom, so compare what it means.
    return _same(scheme.format.reference.unpack(packed), weight, "packing")


def _unpack(scheme: Scheme, device: str) -> float:
    weight, packed = _example(scheme, device)
    return _same(packed.unpack(), weight, "unpacking")


def _rows(scheme: Scheme, device: str) -> float:
    weight, packed = _example(scheme, device)
    ids = torch.arange(len(weight), device=weight.device).flip(0)
    found = read_rows(ids, scheme, packed.tensors, row_places(packed))
    return _same(found, weight[ids], "reading rows")


def _validate(scheme: Scheme, device: str) -> float:
    weight, packed = _example(scheme, device)
    result, nonzeros = scheme.format.nonzeros(packed.validate()), int(weight.count_nonzero())
    if result != nonzeros:
        raise _Wrong(f"counted {result} nonzeros where there are {nonzeros}")
    for name, tensor in packed.tensors.items():
        if not len(tensor):
            continue  # a list of nothing
        damaged = PackedWeight(scheme, _SHAPE, {**packed.tensors, name: tensor[:-1]})
        try:
            damaged.validate()
        except FormatError:
            continue
        raise _Wrong(f"took tensors of which {name} was cut short")
    return 0.0


def _transcode(source: Format, target: Format, device: str) -> float:
    for scheme in source.examples():
        if scheme.dtype not in target.dtypes:
            continue
        weight, packed = _example(scheme, device)
        made = packed.transcode(target.scheme(scheme.dtype), device).to("cpu")
        _same(target.reference.unpack(made), weight, "transcoding")
    return 0.0


def _linear(scheme: Scheme, device: str) -> float:
    weight, packed = _example(scheme, device)
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for dtype in _X_DTYPES:
        for tokens in _TOKENS:
            x, bias = _activations(tokens, weight, dtype, generator)
            y = packed.linear(x.to(device), bias.to(device))
            seen = scheme.format.round_activations(x, scheme)
            sums = 0.0
            if device != "cpu" and seen is not x:
                # Kernels for rounded activations may keep few bits of sums, and round in between.
                sums = _FP8_SUMS + torch.finfo(dtype).eps
            elif device != "cpu" and {*scheme.format.implementations(scheme)} == {LIBRARY}:
                # The weight is rounded to its dtype, and cuBLAS may round sums in between.
                sums = torch.finfo(dtype).eps / 2
            worst = max(worst, _error(y, seen, weight, bias, x.dtype, sums))
    return worst


def _linear_rounded(scheme: Scheme, device: str) -> float:
    """Takes tokens that rounding does not change: whole numbers, the largest of them a code's.

    Those of fp8_e4m3 are up to 7, a 64th of its largest. So the result is that of exact
    activations, but for sums of fp8: tensor cores of compute capability 9.0 keep 14 bits of their
    mantissa.
    """
    values = scheme.values["values"]
    most = 7 if values == "fp8_e4m3" else 127
    weight, packed = _example(scheme, device)
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for tokens in _TOKENS:
        x, bias = _activations(tokens, weight, weight.dtype, generator)
        x = (x * most / 2).round().clamp(-most, most)
        x[:, 0] = most
        tensors = [x.to(device), *packed.tensors.values()]
        sums = _FP8_SUMS if device == "cuda" and values == "fp8_e4m3" else 0.0
        for most_of_few in (None, 0):  # by the op's own choice, and by what takes many tokens
            y = _op(f"{scheme.format.name}_linear_rounded")(
                *tensors, len(weight), weight.dtype, values, bias.to(device), most_of_few
            )
            worst = max(worst, _error(y, x, weight, bias, x.dtype, sums))
    return worst


def _dense(op: str, weight: Tensor, device: str) -> float:
    """Tests weights whose rows are whole chunks of 8 elements, and weights whose rows are not."""
    generator = torch.Generator().manual_seed(1)
    whole = weight.shape[1] // 8 * 8
    thresholds = _DENSE_THRESHOLDS.get(op, ())
    worst = 0.0
    for columns in (whole, weight.shape[1]):
        own = weight.new_zeros(len(weight), whole + 16)[:, :columns].copy_(weight[:, :columns])
        for tokens in _DENSE_TOKENS[op]:
            x, bias = _activations(tokens, own, weight.dtype, generator)
            y = _op(op)(x.to(device), _apart(own, device), bias.to(device), *thresholds)
            worst = max(worst, _error(y, x, own, bias, x.dtype))
    return worst


def _apart(weight: Tensor, device: str) -> Tensor:
    """On a device, the rows as far apart as they were."""
    moved = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device=device)
    return moved.copy_(weight)


def _activations(
    tokens: int, weight: Tensor, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    x = torch.randn(tokens, weight.shape[1], generator=generator).to(dtype)
    return x, torch.randn(len(weight), generator=generator).to(dtype)


def _error(
    y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, sums: float = 0.0
) -> float:
    """The largest error of an element in units of sum |x||w|: that of its rounding and its sum.

    dtype is that of y, and sums the error that sums may have beyond that of float32.
    """
    limit = torch.finfo(dtype).eps / 2 + weight.shape[1] * 2.0**-24 + sums
    expected = reference.linear(x, weight, bias)
    scale = reference.linear(x.abs(), weight.abs(), bias.abs())
    error = float(((y.cpu().double() - expected).abs() / scale).nan_to_num(torch.inf).max())
    if not error <= limit or y.dtype != dtype:
        raise _Wrong(
            f"error {error:.1e} above {limit:.1e} at {len(x)} tokens, {weight.shape[1]} columns, "
            f"x {dtype}, weight {weight.dtype}".replace("torch.", "")
        )
    return error


def _decode(name: str, dtype: torch.dtype, device: str) -> float:
    """The error of each element in units of the largest value: that of its terms and its sum."""
    generator = torch.Generator().manual_seed(2)
    sequences, kv_heads, heads, positions, page = 2, 2, 6, 96, 16

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, 64, generator=generator).to(dtype)

    query = normal(sequences, heads)
    key, value = (normal(sequences, kv_heads, positions) for _ in range(2))
    lengths = torch.tensor([positions, 37], dtype=torch.int32)
    expected = attention_reference.decode(query, key, value, lengths, scale=0.125)
    caches = [key, value]
    if name.endswith("_paged"):
        caches = [tensor.transpose(1, 2).reshape(-1, page, kv_heads, 64) for tensor in caches]
        caches.append(torch.arange(len(caches[0]), dtype=torch.int32).view(sequences, -1))
    worst = 0.0
    for phi in (None, torch.zeros(heads), torch.full((heads,), 80.0)):
        out, recomputed = _op(f"{name}_decode")(
            *_on(device, [query, *caches, lengths]),
            scale=0.125,
            phi=None if phi is None else phi.to(device),
        )
        error = float((out.cpu().double() - expected).abs().max() / value.double().abs().max())
        limit = 2 * torch.finfo(dtype).eps
        if not error <= limit or out.dtype != dtype:
            raise _Wrong(f"error {error:.1e} above {limit:.1e} in {dtype}".replace("torch.", ""))
        useless = phi is not None and bool(phi[0] > 0)
        if bool(recomputed.bool().all()) != useless or bool(recomputed.any()) != useless:
            raise _Wrong("recomputed does not mark where phi was wrong")
        worst = max(worst, error)
    return worst


def _between(op: str, dtype: torch.dtype, device: str) -> float:
    """The error of each element in units of the largest: that of up to three roundings."""
    generator = torch.Generator().manual_seed(3)
    x, more = torch.randn(2, 5, 4, 128, generator=generator).to(dtype)
    positions = torch.arange(5) * 3
    cos_sin = torch.randn(16, 64, generator=generator).to(dtype)
    key_cache, value_cache = torch.zeros(2, 1, 16, 4, 128, dtype=dtype)
    of_ops: dict[str, tuple[Any, ...]] = {
        "rms_norm": (x, more[0, 0], 1e-5),
        "add_rms_norm": (x, more, more[0, 0], 1e-5),
        "gate_mul": (x, "silu"),
        "rope": (x, more, positions, cos_sin, True),
        "rope_cache": (
            *(None, more, x, positions, cos_sin, False, key_cache, value_cache, positions),
        ),
    }
    arguments = of_ops[op]

    def called(function: Any, change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        given = [change(a) if isinstance(a, Tensor) else a for a in arguments]
        found = function(*given)
        if found is None:  # it changes what it is given
            return [given[1], given[6], given[7]]
        return list(found) if isinstance(found, (tuple, list)) else [found]

    exact = called(
        getattr(elementwise, op), lambda a: a.double() if a.dtype == dtype else a.clone()
    )
    worst = 0.0
    for y, right in zip(called(_op(op), lambda a: a.clone().to(device)), exact, strict=True):
        error = float((y.cpu().double() - right).abs().max() / right.abs().max())
        limit = 2 * torch.finfo(dtype).eps
        if not error <= limit or y.dtype != dtype:
            raise _Wrong(f"error {error:.1e} above {limit:.1e} in {dtype}".replace("torch.", ""))
        worst = max(worst, error)
    return worst


def _experts_order(device: str) -> float:
    if error := selftest_experts.order(device):
        raise _Wrong("slots are not in the order of a stable sort by expert")
    return error


def _experts(op: str, device: str) -> float:
    error = selftest_experts.layer(op, device)
    if not error <= selftest_experts.LIMIT:
        raise _Wrong(f"error {error:.1e} above {selftest_experts.LIMIT:.1e}")
    return error


def _capability(device: str) -> float:
    if not kernel_path():
        raise _Wrong("names no kernels")
    return 0.0


_BETWEEN_PRODUCTS = {"rms_norm", "add_rms_norm", "gate_mul", "rope", "rope_cache"}
_OF_EXPERTS = {"experts", "experts_order", "sparse_24_experts"}
_DENSE_TOKENS = {"flat_gemm": (1, 8, 33), "gemv": (1, 3, 8), "dense_linear": (1, 5, 40)}
_DENSE_THRESHOLDS = {"dense_linear": (2, 16)}  # such that it takes each of its three ways
_PROMISES = {
    "_pack": _pack,
    "_unpack": _unpack,
    "_rows": _rows,
    "_validate": _validate,
    "_linear": _linear,
    "_linear_rounded": _linear_rounded,
}
