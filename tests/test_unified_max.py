# SPDX-License-Identifier: Apache-2.0
"""Decode attention on the CPU against float64, and what the ops refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch
from emulated_decode import Decode, fp8, random_decode, require_exact
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_capabilities import supported_capabilities

from flashsparse_plugin import selftest
from flashsparse_plugin.ops import ops

HEAD_DIMS, DTYPES = (64, 80, 96, 128, 256), (torch.float32, torch.float16, torch.bfloat16)


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def decode(case: Decode, **options) -> tuple[torch.Tensor, torch.Tensor]:
    options = {**case.arguments(), "phi": case.phi, **options}
    if not case.page:
        tensors = (case.query, case.key, case.value, case.lengths, case.mask)
        return ops.unified_max_decode(*tensors, **options)
    key, value, table = case.cache()
    return ops.unified_max_paged_decode(case.query, key, value, table, case.lengths, **options)


def counted(case: Decode) -> torch.Tensor:
    out, recomputed = decode(case)
    require_exact(case, out, rounded_terms=False)
    if case.page:
        given = torch.full_like(out, torch.nan)
        key, value, table = case.cache()
        same = ops.unified_max_paged_decode.out(
            case.query, key, value, table, case.lengths, **case.arguments(), phi=case.phi, out=given
        )
        assert torch.equal(given, out) and torch.equal(same, recomputed)
    assert out.dtype == case.query.dtype
    return recomputed


def with_phi(case: Decode, value: float = 0.0) -> Decode:
    return replace(case, phi=torch.full((case.query.shape[1],), value))


# Far below the scores, among them, far above them.
SINK = st.sampled_from((-torch.inf, -100.0, -2.0, 0.5, 3.0, 100.0))


def test_every_head_dim_group_and_dtype():
    for number, (head_dim, group, dtype) in enumerate(product(HEAD_DIMS, (1, 5, 16), DTYPES)):
        case = random_decode(
            3, 2, group, head_dim, 200, number, dtype=dtype, lengths=int32(200, 0, 7 + number),
            page=(0, 16, 48)[number % 3], nhd=number % 2 == 0, window=(0, 50)[number // 2 % 2],
            softcap=(0.0, 2.5)[number // 3 % 2],
        )  # fmt: skip
        assert not counted(case).any() and not counted(with_phi(case)).any()
        if number % 2:
            assert not counted(fp8(case)).any() and not counted(with_phi(fp8(case))).any()


@settings(max_examples=60)
@given(st.data())
def test_any_shape(data):
    """Everything at once: masks with whole rows of nothing, empty batches, one position."""
    draw = data.draw
    sequences, kv_heads, group = draw(st.tuples(*[st.integers(0, 3)] + [st.integers(1, 3)] * 2))
    positions = draw(st.integers(0, 90))
    paged = draw(st.booleans())
    lengths = mask = None
    if paged or draw(st.booleans()):
        numbers = st.lists(st.integers(0, positions), min_size=sequences, max_size=sequences)
        lengths = int32(*draw(numbers))
    if not paged and draw(st.booleans()):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        mask = torch.rand(sequences, positions, generator=generator) < draw(
            st.sampled_from([0, 0.7])
        )
    case = random_decode(
        sequences, kv_heads, group, draw(st.sampled_from((64, 80))), positions,
        draw(st.integers(0, 99)), dtype=draw(st.sampled_from(DTYPES)), lengths=lengths, mask=mask,
        page=draw(st.sampled_from((16, 32))) if paged else 0, window=draw(st.integers(0, 100)),
        softcap=draw(st.sampled_from((0.0, 3.0))), spread=draw(st.sampled_from((1.0, 100.0))),
    )  # fmt: skip
    if draw(st.booleans()):
        heads = st.lists(SINK, min_size=kv_heads * group, max_size=kv_heads * group)
        case = replace(case, sinks=torch.tensor(draw(heads)))
    if draw(st.booleans()):
        case = fp8(case)
    assert not counted(case).any()
    counted(with_phi(case))


def test_a_sink_takes_its_share_once():
    """In float32 or in the dtype of the cache; none at all is -inf, and NaN is not hidden."""
    case = with_phi(random_decode(3, 2, 4, 64, 100, lengths=int32(100, 0, 7), dtype=torch.bfloat16))
    without, _ = decode(case)
    for sink in (-200.0, -1.0, 0.0, 5.0, 200.0):
        sinks = torch.full((8,), sink)
        assert not counted(replace(case, sinks=sinks)).any()
        rounded = decode(case, sinks=sinks.bfloat16())[0]
        assert torch.equal(rounded, decode(case, sinks=sinks)[0])
    assert torch.equal(decode(case, sinks=torch.full((8,), -torch.inf))[0], without)
    out, _ = decode(case, sinks=torch.tensor([torch.nan, *[0.0] * 7]))
    assert out[0, 0].isnan().all() and out[:, 1:].isfinite().all()


def test_a_scale_of_all_heads_or_of_each():
    case = fp8(random_decode(2, 2, 3, 64, 100, dtype=torch.bfloat16))
    one = {"key_scale": torch.tensor(0.03), "value_scale": torch.tensor([0.2])}
    each = {name: scale.expand(2).contiguous() for name, scale in one.items()}
    assert torch.equal(decode(case, **one)[0], decode(case, **each)[0])
    require_exact(replace(case, **each), decode(case, **one)[0], rounded_terms=False)
    ones = {name: torch.ones(2) for name in one}
    none = dict.fromkeys(one)
    assert torch.equal(decode(case, **none)[0], decode(case, **ones)[0])


@pytest.mark.parametrize("page", [0, 16])
def test_codes_in_graphs(page):
    """All of opcheck but what compares inputs, which torch cannot do with codes."""
    case = fp8(random_decode(2, 2, 3, 64, 40, page=page))
    op, inputs = ops.unified_max_decode.default, (case.key, case.value, case.lengths)
    if page:
        op, inputs = ops.unified_max_paged_decode.default, (*case.cache(), case.lengths)
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, (case.query, *inputs), case.arguments(), test_utils=checks)


def test_every_code_but_nan_is_its_value():
    """Values of one position each: 254 codes, both signs of zero and subnormal ones included."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    value = torch.zeros(4, 1, 1, 64, dtype=torch.float8_e4m3fn)
    value.view(torch.uint8).flatten()[:254] = codes.view(torch.uint8)
    for dtype in DTYPES:
        query = torch.ones(4, 1, 64, dtype=dtype)
        out, _ = ops.unified_max_decode(query, value, value, scale=1e-3)
        assert torch.equal(out.flatten()[:254].float(), codes.float())


@pytest.mark.parametrize(("dtype", "rounded_terms"), [*product(DTYPES, (False, True))])
def test_the_bound_sees_a_lost_position(dtype, rounded_terms):
    """One of 300, looked at or not, in 16 bits or in 32."""
    case = random_decode(1, 1, 4, 128, 300, dtype=dtype)
    lost = replace(case, mask=torch.arange(300)[None] != 144)
    require_exact(case, decode(case)[0], rounded_terms)
    with pytest.raises(AssertionError, match="elements are wrong"):
        require_exact(case, decode(lost)[0], rounded_terms)


@pytest.mark.slow
def test_a_long_sequence():
    case = random_decode(1, 1, 2, 64, 100_003, page=256, dtype=torch.bfloat16)
    assert not counted(case).any() and not counted(with_phi(case)).any()


@pytest.mark.slow
@pytest.mark.parametrize("capability", supported_capabilities()[1:])
def test_every_instruction_set(capability):
    """In a process each, as the choice is made once; all the other tests run with the first."""
    environment = {**os.environ, "FLASHSPARSE_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join(sys.path)
    program = "import test_unified_max as t; t.test_every_head_dim_group_and_dtype()"
    program += f"; assert t.ops.cpu_capability() == {capability!r}"
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "PYTHONPATH": paths},
        cwd=os.path.dirname(__file__), capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_strides_of_single_entries_mean_nothing():
    """PyTorch may leave any there: vLLM's cache has such a dimension where a rank has one head."""
    case = random_decode(1, 1, 1, 64, 16)
    odd = [t.as_strided(t.shape, (7, 3, *t.stride()[2:])) for t in (case.key, case.value)]
    query = case.query.as_strided((1, 1, 64), (5, 9, 1))
    out, _ = ops.unified_max_decode(query, *odd, scale=case.scale)
    require_exact(case, out, rounded_terms=False)


def test_threads_change_nothing():
    case = with_phi(random_decode(5, 3, 2, 64, 300, 1))
    alone, _ = decode(case)
    torch.set_num_threads(3)
    try:
        assert torch.equal(decode(case)[0], alone)
    finally:
        torch.set_num_threads(1)


# ---- the guard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_hundreds(dtype):
    """phi = 0 is wrong everywhere: every sequence and head is done again, and is right."""
    case = random_decode(2, 2, 3, 64, 300, 1, dtype=dtype, spread=2000.0)
    assert not counted(case).any()
    assert (counted(with_phi(case)) == 1).all()


def test_only_the_head_that_overflows_is_counted():
    case = with_phi(random_decode(2, 2, 4, 64, 300, 1, dtype=torch.bfloat16))
    assert not counted(case).any()
    case.query[1, 3] *= 200
    recomputed = counted(case)
    assert recomputed[1, 3] == 1 and recomputed.sum() == 1


@pytest.mark.parametrize("value", [80.0, -80.0, float("inf"), float("-inf"), float("nan")])
def test_a_useless_phi_is_noticed_everywhere(value):
    case = random_decode(2, 2, 4, 64, 300, 2, lengths=int32(300, 0))
    recomputed = counted(with_phi(case, value))
    assert (recomputed[0] == 1).all() and not recomputed[1].any()  # nothing to do again


def test_the_range_is_the_callers():
    """low and high bound the sum of e^(score - phi): here 300 terms of e^0."""
    case = with_phi(random_decode(1, 1, 1, 64, 300))
    case.query.zero_()
    sum_of_terms = torch.tensor(300.0).log().item()
    for low, high, expected in (
        (sum_of_terms - 0.01, sum_of_terms + 0.01, 0),
        (sum_of_terms + 0.01, None, 1),
        (None, sum_of_terms - 0.01, 1),
    ):
        out, recomputed = decode(case, low=low, high=high)
        require_exact(case, out, rounded_terms=False)
        assert recomputed.item() == expected


def test_infinity_and_nan_are_not_hidden():
    for value in (torch.inf, torch.nan):
        case = random_decode(1, 1, 8, 64, 300, 1)
        case.key[0, 0, 77, 3] = value
        for each in (case, with_phi(case)):
            out, _ = decode(each)
            scores = case.query[0].double() @ case.key[0, 0, 77].double()
            assert not out[0][~scores.lt(0)].isfinite().any()
            assert value != torch.inf or out[0][scores.lt(0)].isfinite().all()


# ---- what is refused ----------------------------------------------------------------------------

QUERY, CACHE = torch.ones(2, 6, 64), torch.ones(2, 3, 20, 64)
PAGES, TABLE, LENGTHS = torch.ones(4, 16, 3, 64), torch.zeros(2, 2, dtype=torch.int32), int32(9, 32)
CODES = dict.fromkeys(("key", "value"), CACHE.to(torch.float8_e4m3fn))


def refuse(message, op, *args, **options):
    with pytest.raises(RuntimeError, match=message):
        op(*args, **{"scale": 1.0, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": QUERY[0]}, r"query must be \[sequences, heads, head_dim\], has 2"),
        ({"query": QUERY[..., :48]}, "head_dim must be 64, 80, 96, 128 or 256, not 48"),
        ({"query": QUERY.mT.contiguous().mT}, "query must have its last dimension contiguous"),
        ({"query": QUERY.double()}, "dtype of query|query must be float32"),
        ({"query": QUERY[:, :5]}, "5 query heads cannot share 3 kv heads evenly"),
        ({"query": QUERY[:1]}, "key is for 2 sequences, query for 1"),
        ({"key": CACHE.half()}, "key must have the dtype of query"),
        ({"key": CACHE[0]}, "key must have 4 dimensions, has 3"),
        ({"key": torch.ones(2, 3, 20, 80)}, "key has heads of 80 elements, query of 64"),
        ({"key": CACHE.mT.contiguous().mT}, "key must have its last dimension contiguous"),
        (
            {"value": CACHE[:, :, :19]},
            "value must have the shape of key, in dimension 2 20, not 19",
        ),
        ({"lengths": int32(1, 2).long()}, "lengths must be int32"),
        ({"lengths": int32(1)}, "lengths is for 1 sequences, query for 2"),
        ({"lengths": int32(1, 21)}, "sequence 1 has length 21, there are 20 positions"),
        ({"lengths": int32(-1, 2)}, "sequence 0 has length -1"),
        ({"mask": torch.ones(2, 20)}, "mask must be bool"),
        ({"mask": torch.ones(2, 19, dtype=torch.bool)}, r"mask must be \[2, 20\]"),
        ({"phi": torch.ones(3)}, r"phi must be \[6\], one number a query head"),
        ({"phi": torch.ones(6).half()}, "phi must be float32"),
        ({"key": CACHE.to(torch.float8_e4m3fn)}, "keys and values must have one dtype"),
        ({"key_scale": torch.ones(1)}, "key_scale is for keys and values in float8_e4m3fn"),
        ({**CODES, "key_scale": torch.ones(2)}, r"key_scale must be one number, or \[3\]"),
        ({**CODES, "value_scale": torch.ones(3).half()}, "value_scale must be float32"),
        ({**CODES, "value_scale": torch.ones(6)[::2]}, "value_scale must be contiguous"),
        ({"sinks": torch.ones(3)}, r"sinks must be \[6\], one number a query head"),
        ({"sinks": torch.ones(6).half()}, "sinks must be float32 or have the dtype of query"),
        ({"sinks": torch.ones(12)[::2]}, "sinks must be contiguous"),
        ({"scale": 0.0}, "scale must be above 0 and finite"),
        ({"scale": float("nan")}, "scale must be above 0 and finite"),
        ({"softcap": -1.0}, "softcap must be 0"),
        ({"window": -1}, "window must be 0"),
        ({"low": 3.0, "high": 2.0}, "low and high must be rising"),
        ({"high": 60.0}, "low and high must be rising, and within"),
    ],
)
def test_bad_arguments_are_errors(change, message):
    names = ("query", "key", "value", "lengths", "mask")
    tensors = {"query": QUERY, "key": CACHE, "value": CACHE, **change}
    refuse(
        message,
        ops.unified_max_decode,
        *(tensors.pop(name, None) for name in names),
        **tensors,
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((PAGES[:, :15], PAGES[:, :15], TABLE, LENGTHS), "must have a multiple of 16 positions"),
        ((PAGES, PAGES[:3], TABLE, LENGTHS), "value_cache must have the shape of key_cache"),
        ((PAGES, PAGES, TABLE.long(), LENGTHS), "block_table must be int32"),
        ((PAGES, PAGES, TABLE[0], LENGTHS), "block_table must have 2 dimensions, has 1"),
        ((PAGES, PAGES, TABLE + 4, LENGTHS), "entry 0 of sequence 0 in block_table is block 4"),
        ((PAGES, PAGES, TABLE - 1, LENGTHS), "is block -1, the cache has 4"),
        ((PAGES, PAGES, TABLE, int32(9, 33)), "sequence 1 has length 33, there are 32 positions"),
    ],
)
def test_bad_pages_are_errors(args, message):
    refuse(message, ops.unified_max_paged_decode, QUERY, *args)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (QUERY.double(), "out must have the dtype of query"),
        (QUERY[:1], "out must be contiguous and of the shape of query"),
        (QUERY.transpose(0, 1).contiguous().transpose(0, 1), "out must be contiguous"),
        (QUERY.to("meta"), "out must be on the device of query"),
    ],
)
def test_a_bad_out_is_an_error(out, message):
    with pytest.raises(RuntimeError, match=message):
        ops.unified_max_paged_decode.out.redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
            QUERY, PAGES, PAGES, TABLE, LENGTHS, scale=1.0, out=out,
        )  # fmt: skip


def test_entries_beyond_a_length_are_not_used():
    table = TABLE.clone()
    table[0, 1] = -1
    out, _ = ops.unified_max_paged_decode(QUERY, PAGES, PAGES, table, LENGTHS, scale=1.0)
    assert torch.equal(out, torch.ones_like(QUERY))


@pytest.mark.parametrize("op", ["unified_max_decode", "unified_max_paged_decode"])
def test_the_self_test_covers_it(op):
    assert selftest.check(op).status == selftest.PASS
