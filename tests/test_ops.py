# SPDX-License-Identifier: Apache-2.0
"""Every op keeps its promises to PyTorch: schema, fake shapes, autograd, torch.compile."""

import resource

import pytest
import torch
from torch.library import opcheck
from weights import sparse_weight

import flashsparse_plugin as fs
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.pattern.nm_gather import NMGather
from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.ops import ops

OUT, IN = 150, 70
WEIGHT = sparse_weight(OUT, IN)
STORED = tuple(fs.pack(WEIGHT, "tiled_csl").tensors.values())
UNITS = tuple(fs.pack(WEIGHT, "tiled_bitmap").tensors.values())
EXACT_WEIGHT = WEIGHT.clone().index_fill_(1, torch.tensor([5]), 2.0**-40)
EXACT = tuple(fs.pack(EXACT_WEIGHT, "lossless").tensors.values())
RUNNING = tuple(fs.pack(WEIGHT).prepare("cpu").tensors.values())
BYTES = fs.pack(WEIGHT, "tiled_bitmap", values="int8")
BYTES_WEIGHT, BYTES_RUNNING = BYTES.unpack(), BYTES.prepare("cpu").tensors
*BYTES, ROW_SCALES = BYTES.tensors.values()
BYTES_RUNNING, BYTES_MORE = tuple(BYTES_RUNNING.values())[:3], (None, None, ROW_SCALES)
PATTERN = (3, 8, 16)  # n, m, vector_length
VECTORS = PatternOptions(n=3, m=8, vector_length=16)
REGULAR = VECTORS.keep_largest(WEIGHT)
VECTORS_STORED = fs.pack(REGULAR, "nm_vector", VECTORS.model_dump())
PANELS = tuple(VECTORS_STORED.prepare("cpu").tensors.values())
VECTORS_STORED = tuple(VECTORS_STORED.tensors.values())
CODES = {"values": "int4", "group": 32}
CODED = VECTORS.model_copy(update=CODES).model_dump()
CODED_STORED = fs.pack(REGULAR, "nm_vector", CODED)
CODED_PANELS = CODED_STORED.prepare("cpu")
*CODED_STORED, CODED_SCALE = CODED_STORED.tensors.values()
CODED_PANELS, PANEL_SCALES = CODED_PANELS.tensors, CODED_PANELS.tensors["scales"]
CODED_PANELS = (CODED_PANELS["values"], CODED_PANELS["columns"])
CODED_ROWS = fs.pack(REGULAR, "nm_vector", {**CODED, "vector_length": 1}).prepare("cpu")
CODED_WEIGHT, CODED_ROWS = CODED_ROWS.unpack(), tuple(CODED_ROWS.tensors.values())
HYBRID = fs.pack(REGULAR, "hybrid_24", values="int4", group=32).prepare("cpu")
HYBRID_WEIGHT, HYBRID = HYBRID.unpack(), tuple(HYBRID.tensors.values())
GATHER_SCHEME = NMGather().scheme(torch.bfloat16, VECTORS.model_dump())
SPMM_SCHEME = NMSpmm().scheme(torch.float32, VECTORS.model_dump())
SPMM = tuple(NMSpmm().pack(REGULAR.float(), SPMM_SCHEME).tensors.values())
GATHER = tuple(NMGather().pack(REGULAR, GATHER_SCHEME).tensors.values())
CODES_SCHEME = NMGather().scheme(torch.bfloat16, VECTORS.model_dump() | {"values": "int8"})
*GATHER_CODES, GATHER_SCALE = NMGather().pack(REGULAR, CODES_SCHEME).tensors.values()


def x(dtype=torch.float32):
    return torch.randn(2, 3, IN, dtype=dtype, requires_grad=True)


def bias():
    return torch.randn(OUT, requires_grad=True)


def attention(dtype=torch.float32, paged=False):
    query, cache = torch.randn(2, 6, 64, dtype=dtype), torch.randn(4, 2, 16, 128, dtype=dtype)
    if not paged:
        return query, *cache[:2].split(64, -1)
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    return query, *cache.transpose(1, 2).split(64, -1), table


LENGTHS = torch.tensor([16, 7], dtype=torch.int32)
HEADS = torch.randn(2, 5, 64, dtype=torch.bfloat16)  # of two tokens
PAGES = torch.zeros(2, 2, 16, 2, 64, dtype=torch.bfloat16).unbind()
# Sizes, values, whether x is quantized, and an H200.
PRODUCT = ([512, 512, 8, 1 << 18, 0, 0, 0, 0, 0, 0], "native", False, ops.known_gpu("H200"))

SAMPLES = {
    "experts_order": [
        (torch.tensor([[1, 0], [2, 1]]), 3, 8),
        (torch.tensor([[1, 0]]).int(), 1, 16, torch.tensor([0, -1]).int()),
    ],
    "tiled_csl_pack": [(WEIGHT,)],
    "tiled_csl_unpack": [(*STORED, OUT, IN, torch.bfloat16)],
    "tiled_csl_validate": [(*STORED, OUT, IN)],
    "tiled_csl_to_interleaved_bitmap": [(*STORED, OUT, IN)],
    "tiled_csl_linear": [
        (x(), *STORED, OUT, torch.bfloat16),
        (x(torch.bfloat16), *STORED, OUT, torch.bfloat16, bias()),
        (x(), *STORED, OUT, torch.bfloat16, None, 0),
        (x(torch.bfloat16), *STORED, OUT, torch.bfloat16, bias(), 4),
    ],
    "tiled_csl_to_tiled_bitmap": [(*STORED, OUT, IN)],
    "lossless_pack": [(EXACT_WEIGHT,)],
    "lossless_unpack": [(*EXACT, OUT, IN, torch.bfloat16)],
    "lossless_validate": [(*EXACT, OUT, IN)],
    "lossless_rows": [(torch.tensor([[0, 149], [7, 7]]), *EXACT, IN)],
    "lossless_linear": [
        (x(), *EXACT, OUT, torch.bfloat16),
        (x().bfloat16(), *EXACT, OUT, torch.bfloat16, bias().bfloat16()),
    ],
    "tiled_bitmap_pack": [(WEIGHT,), (WEIGHT.to(torch.int8),)],
    "tiled_bitmap_unpack": [
        (*UNITS, OUT, IN, torch.bfloat16),
        (*BYTES, OUT, IN, torch.bfloat16, ROW_SCALES),
        (*BYTES, OUT, IN, torch.int8),
    ],
    "tiled_bitmap_validate": [(*UNITS, OUT, IN), (*BYTES, OUT, IN, 8)],
    "tiled_bitmap_to_interleaved_bitmap": [(*UNITS, OUT, IN), (*BYTES, OUT, IN, 8)],
    "tiled_bitmap_to_tiled_csl": [(*UNITS, OUT, IN)],
    "tiled_bitmap_linear": [
        (x(), *UNITS, OUT, torch.bfloat16),
        (x(torch.bfloat16), *UNITS, OUT, torch.bfloat16, bias(), 4),
        (x(torch.bfloat16), *BYTES, OUT, torch.bfloat16, bias(), None, None, ROW_SCALES),
    ],
    "interleaved_bitmap_to_tiled_bitmap": [(*RUNNING, OUT, IN), (*BYTES_RUNNING, OUT, IN)],
    "interleaved_bitmap_pack": [(WEIGHT,), (WEIGHT.to(torch.int8),)],
    "interleaved_bitmap_validate": [(*RUNNING, OUT, IN), (*BYTES_RUNNING, OUT, IN)],
    "interleaved_bitmap_unpack": [
        (*RUNNING, OUT, IN, torch.bfloat16),
        (*BYTES_RUNNING, OUT, IN, torch.bfloat16, ROW_SCALES),
        (*BYTES_RUNNING, OUT, IN, torch.int8),
    ],
    "tiled_bitmap_linear_rounded": [
        (x(torch.bfloat16), *BYTES, ROW_SCALES, OUT, torch.bfloat16, "int8"),
        (x(torch.bfloat16), *BYTES, ROW_SCALES, OUT, torch.bfloat16, "int8", bias(), 1),
    ],
    "interleaved_bitmap_linear": [
        (x(), *RUNNING, OUT, torch.bfloat16),
        (x(torch.float16), *RUNNING, OUT, torch.bfloat16, bias()),
        (x(torch.bfloat16), *BYTES_RUNNING, OUT, torch.bfloat16, None, ROW_SCALES),
    ],
    "nm_vector_pack": [(REGULAR, *PATTERN), (REGULAR.float(), *PATTERN)],
    "nm_vector_unpack": [
        (*VECTORS_STORED, OUT, IN, *PATTERN, torch.bfloat16),
        (*CODED_STORED, OUT, IN, *PATTERN, torch.bfloat16, CODED_SCALE, "int4", 32),
    ],
    "nm_vector_validate": [
        (*VECTORS_STORED, OUT, IN, *PATTERN),
        (*CODED_STORED, OUT, IN, *PATTERN, "int4"),
    ],
    "nm_vector_linear": [
        (x(), *CODED_STORED, OUT, *PATTERN, torch.bfloat16, bias(), CODED_SCALE, "int4", 32),
        (x(), *VECTORS_STORED, OUT, *PATTERN, torch.bfloat16),
        (x(torch.bfloat16), *VECTORS_STORED, OUT, *PATTERN, torch.bfloat16, bias()),
    ],
    "nm_panels_unpack": [
        (*PANELS, OUT, IN, 16, torch.bfloat16),
        (*CODED_PANELS, OUT, IN, 16, torch.bfloat16, PANEL_SCALES, "int4", 12),
    ],
    "nm_panels_linear": [
        (x(), *PANELS, OUT, 16, torch.bfloat16),
        (x(torch.float16), *PANELS, OUT, 16, torch.bfloat16, bias()),
        (x(), *CODED_PANELS, OUT, 16, torch.bfloat16, None, PANEL_SCALES, "int4", 12),
    ],
    "nm_rows_unpack": [
        (*CODED_ROWS, OUT, IN, 3, 8, torch.bfloat16, "int4", 32),
        (*CODED_ROWS[:2], None, OUT, IN, 3, 8, torch.float16, "int4", 32),
    ],
    "nm_rows_linear": [
        (x(), *CODED_ROWS, OUT, 3, 8, torch.bfloat16, "int4", 32),
        (x(torch.float16), *CODED_ROWS, OUT, 3, 8, torch.bfloat16, "int4", 32, bias()),
    ],
    "exact_units_linear": [],  # in formats/unstructured/test_exact_units.py, as is the next
    "exact_units_unpack": [],
    "hybrid_panels_unpack": [
        (*HYBRID, OUT, IN, torch.bfloat16, "int4", 32),
        (*HYBRID[:3], None, OUT, IN, torch.float16, "int4", 32),
    ],
    "hybrid_panels_linear": [
        (x(), *HYBRID, OUT, torch.bfloat16, "int4", 32),
        (x(torch.float16), *HYBRID, OUT, torch.bfloat16, "int4", 32, bias()),
    ],
    "hybrid_units_linear": [],  # in formats/pattern/test_hybrid_units.py, as is the next
    "hybrid_units_unpack": [],
    "sparse_24_linear": [],  # in formats/pattern/test_sparse_24.py, as is the next
    "sparse_24_unpack": [],
    "sparse_24_linear_rounded": [],  # in formats/pattern/test_sparse_24.py
    "experts": [],  # in experts/test_op.py
    "sparse_24_experts": [],  # in formats/pattern/test_sparse_24_experts.py
    "nm_gather_unpack": [
        (*GATHER, OUT, IN, *PATTERN, torch.bfloat16),
        (*GATHER_CODES, OUT, IN, *PATTERN, torch.bfloat16, GATHER_SCALE, "int8"),
    ],
    "nm_gather_linear": [
        (x(), *GATHER, OUT, *PATTERN, torch.bfloat16),
        (x(torch.float16), *GATHER, OUT, *PATTERN, torch.bfloat16, bias(), 4),
        (x(), *GATHER_CODES, OUT, *PATTERN, torch.bfloat16, None, 4, GATHER_SCALE, "int8", 0),
        (
            *(x(torch.bfloat16), *GATHER_CODES, OUT, *PATTERN, torch.bfloat16, bias(), 4),
            *(GATHER_SCALE, "int8", 0, torch.rand(x().shape[:-1].numel())),
        ),
    ],
    "nm_spmm_unpack": [(*SPMM, OUT, IN, *PATTERN, torch.float32)],
    "nm_spmm_linear": [
        (x(), *SPMM, OUT, *PATTERN, torch.float32),
        (x(torch.float16), *SPMM, OUT, *PATTERN, torch.float32, bias(), 4),
    ],
    "flat_gemm": [],  # in test_flat_gemm.py, as is the next
    "gemv": [],
    "dense_linear": [],  # in dataflow/test_linear.py
    "unified_max_decode": [
        (*attention(),),
        (*attention(torch.bfloat16), LENGTHS, torch.ones(2, 16, dtype=torch.bool)),
    ],
    "unified_max_paged_decode": [(*attention(torch.float16, paged=True), LENGTHS)],
    "unified_max_paged_decode.out": [(*attention(torch.float16, paged=True), LENGTHS)],
    "rms_norm": [(HEADS, HEADS[0, 0], 1e-5), (HEADS[:, :2], HEADS[0, 0], 1e-5, True)],
    "add_rms_norm": [(HEADS, HEADS.clone(), HEADS[0, 0], 1e-5)],
    "gate_mul": [(HEADS, "silu"), (HEADS[0], "gelu_tanh")],
    "rope": [(HEADS[:, :3], HEADS[:, 3:], LENGTHS.long(), HEADS[0], True)],
    "rope_cache": [
        (HEADS.clone(), HEADS.clone(), None, LENGTHS.long(), HEADS[0], False),
        (None, HEADS[:, :2].clone(), HEADS[:, 2:4], None, None, True, *PAGES, LENGTHS.long() % 32),
    ],
    "cpu_capability": [()],
    **dict.fromkeys(("begin_early", "override_launch", "end_override"), []),  # CUDA only
    **dict.fromkeys(("known_gpus", "launch_fields", "compiled_shapes", "choose_kernel"), []),  # str
    "known_gpu": [("H200",)],
    "plan": [("sparse_24.many", *PRODUCT), ("tiled_bitmap.codes", *PRODUCT)],
    "candidates": [("dense.flat_gemm", *PRODUCT)],
}
DECODE = {"scale": 0.125, "phi": torch.zeros(6), "sinks": torch.ones(6)}
OPTIONS = {
    "unified_max_decode": DECODE,
    "unified_max_paged_decode": DECODE,
    "unified_max_paged_decode.out": {**DECODE, "out": torch.empty(2, 6, 64, dtype=torch.float16)},
}


def registered_ops():
    names = (name.split("::") for name in torch._C._dispatch_get_all_op_names())
    return {op for namespace, op in names if namespace == "flashsparse"}


def test_every_op_has_a_sample():
    assert registered_ops() == set(SAMPLES)


@pytest.mark.parametrize(
    ("name", "args"),
    [(name, args) for name, samples in SAMPLES.items() for args in samples if args],
)
def test_opcheck(name, args):
    packet, _, overload = name.partition(".")
    opcheck(getattr(getattr(ops, packet), overload or "default"), args, OPTIONS.get(name))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_torch_knows_dtypes_by_our_numbers(dtype):
    number = get_format("nm_vector").scheme(dtype, VECTORS.model_dump()).dtype_number
    assert torch.ops.aten._to_copy(torch.zeros(1), dtype=number).dtype == dtype


@pytest.mark.parametrize(
    ("op", "weight", "packed", "more"),
    [
        ("tiled_csl_linear", WEIGHT, (*STORED, OUT, torch.bfloat16), ()),
        ("tiled_csl_linear", WEIGHT, (*STORED, OUT, torch.bfloat16), (4,)),
        ("tiled_bitmap_linear", WEIGHT, (*UNITS, OUT, torch.bfloat16), (4,)),
        ("tiled_bitmap_linear", BYTES_WEIGHT, (*BYTES, OUT, torch.bfloat16), BYTES_MORE),
        ("lossless_linear", EXACT_WEIGHT, (*EXACT, OUT, torch.bfloat16), ()),
        ("interleaved_bitmap_linear", WEIGHT, (*RUNNING, OUT, torch.bfloat16), ()),
        ("nm_vector_linear", REGULAR, (*VECTORS_STORED, OUT, *PATTERN, torch.bfloat16), ()),
        ("nm_panels_linear", REGULAR, (*PANELS, OUT, 16, torch.bfloat16), ()),
        ("nm_rows_linear", CODED_WEIGHT, (*CODED_ROWS, OUT, 3, 8, torch.bfloat16, "int4", 32), ()),
        ("hybrid_panels_linear", HYBRID_WEIGHT, (*HYBRID, OUT, torch.bfloat16, "int4", 32), ()),
        ("nm_gather_linear", REGULAR, (*GATHER, OUT, *PATTERN, torch.bfloat16), (4,)),
        ("nm_spmm_linear", REGULAR, (*SPMM, OUT, *PATTERN, torch.float32), (4,)),
    ],
)
def test_gradients_are_those_of_a_dense_linear(op, weight, packed, more):
    ours, theirs = x(), None
    own_bias = bias()
    theirs = ours.detach().clone().requires_grad_()
    their_bias = own_bias.detach().clone().requires_grad_()
    dy = torch.randn(2, 3, OUT)
    getattr(ops, op)(ours, *packed, own_bias, *more).backward(dy)
    torch.nn.functional.linear(theirs, weight.float(), their_bias).backward(dy)
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(own_bias.grad, their_bias.grad)


@pytest.mark.parametrize("most", [None, 0, 5, 6, 1 << 31])
def test_on_a_cpu_any_number_of_sparse_tokens_is_the_same(most):
    arguments = x(), *STORED, OUT, torch.bfloat16, bias()
    assert torch.equal(ops.tiled_csl_linear(*arguments, most), ops.tiled_csl_linear(*arguments))


def test_fewer_than_no_sparse_tokens_are_an_error():
    with pytest.raises(RuntimeError, match="sparse_tokens must be 0 .* or more, not -1"):
        ops.tiled_csl_linear(x(), *STORED, OUT, torch.bfloat16, None, -1)
    bitmap = ops.tiled_bitmap_pack(WEIGHT)
    with pytest.raises(RuntimeError, match="few_tokens must be 0 .* or more, not -1"):
        ops.tiled_bitmap_linear(x(), *bitmap, OUT, torch.bfloat16, None, 5, -1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_to_one_graph(dynamic):
    layer = fs.SparseLinear.from_packed(fs.pack(WEIGHT, "tiled_csl"))
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    for tokens in (4, 9):
        tokens = torch.randn(tokens, IN)
        torch.testing.assert_close(compiled(tokens), layer(tokens))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(2, IN + 2), *RUNNING, OUT, torch.bfloat16), "masks"),
        ((torch.ones(2, IN), *RUNNING, OUT + 16, torch.bfloat16), "masks"),
        ((torch.ones(2, IN), *RUNNING, OUT, torch.float32), "values has the wrong dtype"),
        ((torch.ones(2, IN).double(), *RUNNING, OUT, torch.bfloat16), "x must be float32"),
        ((torch.ones(2, IN), RUNNING[0][:-1], *RUNNING[1:], OUT, torch.bfloat16), "values"),
        ((torch.ones(2, IN), *RUNNING, OUT, torch.bfloat16, torch.ones(3)), "bias"),
        ((torch.ones(()), *RUNNING, OUT, torch.bfloat16), "x must be"),
    ],
)
def test_bad_arguments_are_errors_before_any_kernel_runs(args, message):
    with pytest.raises(RuntimeError, match=message):
        ops.interleaved_bitmap_linear(*args)


def test_no_tokens_give_no_rows():
    y = ops.interleaved_bitmap_linear(torch.ones(0, IN), *RUNNING, OUT, torch.bfloat16)
    assert y.shape == (0, OUT)


def test_a_refusal_names_neither_a_file_nor_a_function():
    with pytest.raises(RuntimeError) as caught:
        ops.tiled_csl_pack(torch.zeros(3))
    assert str(caught.value).startswith("weight must be [out_features, in_features], has 1 dim")


def test_out_of_memory_says_so():
    """The weight is empty packed, and 274 GB dense."""
    rows = 2**31 - 1
    offsets = torch.zeros((rows + 127) // 128 + 1, dtype=torch.int32)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))  # on a machine that has as much, too
    try:
        with pytest.raises(RuntimeError) as caught:
            ops.tiled_csl_unpack(
                torch.zeros(0, dtype=torch.int32), offsets, rows, 64, torch.bfloat16
            )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    told = "out of memory: there is no room for a tensor of [2147483647, 64]"
    assert str(caught.value).splitlines()[0] == told
