# SPDX-License-Identifier: Apache-2.0
"""The primitives of kernels/common: what they compute in the emulator, what nvcc makes of them."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
import torch
from emulation import EACH_BUILD, EMULATOR_EXIT_CODE, KERNELS, SEEDS, compile_cuda, find_nvcc

LANES = np.arange(32)
GROUP, PAIR = LANES // 4, LANES % 4 * 2  # where a lane's elements of a fragment are


@pytest.fixture(params=EACH_BUILD)
def primitive(driver, request):
    """primitive(case, words) runs one kernel of primitives.cuh: uint32 in, uint32 out.

    The answer is the same on every schedule and under every sanitizer.
    """

    def run(case: str, words: np.ndarray, **environment: str) -> np.ndarray:
        fed = np.ascontiguousarray(words, dtype=np.uint32).tobytes()
        answers = []
        for sanitizer in sorted({"plain", request.param}):
            command = [str(driver("primitives_driver", sanitizer)), case, *map(str, SEEDS)]
            ran = subprocess.run(
                command, input=fed, capture_output=True, timeout=60, env=os.environ | environment
            )
            assert ran.returncode == 0, ran.stderr.decode()
            answers.extend(np.frombuffer(ran.stdout, dtype=np.uint32).reshape(len(SEEDS), -1))
        assert all(np.array_equal(answer, answers[0]) for answer in answers)
        return answers[0]

    return run


def random_words(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


def to_float32(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def halves(words: np.ndarray) -> np.ndarray:
    """The low and the high 16 bits of each word, in a new last axis."""
    return np.stack([words & 0xFFFF, words >> 16], axis=-1).astype(np.uint16)


def mma_matrices(words: np.ndarray, dtype: str):
    """A [16, 16], B [16, 8] and D [16, 8] from a[4], b[2], d[4] of 32 lanes (PTX, mma.m16n8k16)."""
    a, b, d = np.empty((16, 16)), np.empty((16, 8)), np.empty((16, 8))
    elements = to_float32(halves(words[:, :6]), dtype)
    for i in range(4):
        for half in range(2):
            a[GROUP + 8 * (i % 2), PAIR + 8 * (i // 2) + half] = elements[:, i, half]
        d[GROUP + 8 * (i // 2), PAIR + i % 2] = words[:, 6 + i].copy().view(np.float32)
    for i in range(2):
        for half in range(2):
            b[PAIR + 8 * i + half, GROUP] = elements[:, 4 + i, half]
    return a, b, d


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("values", ["any bits", "one NaN", "finite"])
def test_mma(primitive, dtype, values):
    words = random_words(32, 10, seed=1)
    if values != "any bits":  # magnitudes from 2^-3 to 2^4, so that the sum is exact in fp64
        exponent, fraction = (10, 0x3FF) if dtype == "float16" else (7, 0x7F)
        bias = 15 if dtype == "float16" else 127
        parts = halves(words[:, :6])
        parts = (parts & (0x8000 | fraction)) | ((bias - 3 + parts % 8) << exponent)
        words[:, :6] = parts[..., 0] | parts[..., 1].astype(np.uint32) << 16
        words[:, 6:] = np.random.default_rng(2).normal(size=(32, 4)).astype(np.float32).view("u4")
    if values == "one NaN":
        words[9, 2] = 0x7FFF
    with np.errstate(all="ignore"):
        a, b, d = mma_matrices(words, dtype)
        wanted = a @ b + d
        scale = np.abs(a) @ np.abs(b) + np.abs(d)
    answer = primitive(f"mma_{dtype}", words).view(np.float32).reshape(32, 4)
    result = np.empty((16, 8))
    for i in range(4):
        result[GROUP + 8 * (i // 2), PAIR + i % 2] = answer[:, i]
    if values == "finite":
        assert np.array_equal(result, wanted.astype(np.float32))
    elif values == "one NaN":  # in lane 9, a[2]: row 2, column 10, so the whole row 2 of D
        assert np.array_equal(np.isnan(result), np.isnan(wanted))
        assert np.isnan(result).sum() == 8 and np.isnan(result[2]).all()
    else:
        sure = np.isfinite(scale) & (scale < 3e38)
        assert sure.any() or dtype == "bfloat16"
        assert (np.abs(result - wanted)[sure] <= scale[sure] * 2.0**-23).all()
        assert np.isnan(result[np.isnan(wanted)]).all() and np.isnan(wanted).any()


def test_mma_bytes(primitive):
    """Unsigned by signed, modulo 2^32 (PTX, mma.m16n8k32)."""
    words = random_words(32, 10, seed=24)
    a, b = np.empty((16, 32), np.uint8), np.empty((32, 8), np.int8)
    d = np.empty((16, 8), np.uint32)
    bytes_ = words.view(np.uint8).reshape(32, 10, 4)
    for i in range(4):
        for e in range(4):
            a[GROUP + 8 * (i % 2), 2 * PAIR + 16 * (i // 2) + e] = bytes_[:, i, e]
            if i < 2:
                b[2 * PAIR + 16 * i + e, GROUP] = bytes_[:, 4 + i, e].view(np.int8)
        d[GROUP + 8 * (i // 2), PAIR + i % 2] = words[:, 6 + i]
    wanted = (a.astype(np.int64) @ b.astype(np.int64) + d).astype(np.uint32)
    answer = primitive("mma_bytes", words).reshape(32, 4)
    for i in range(4):
        assert np.array_equal(answer[:, i], wanted[GROUP + 8 * (i // 2), PAIR + i % 2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("half", [0, 1])
def test_mma_sparse(primitive, dtype, half):
    """Values of both dtypes with few bits, so that every sum is exact."""
    random = np.random.default_rng(20 + half)
    small = random.integers(-8, 9, (32, 8, 2)).astype(np.float32)
    bits = small.view(np.uint32) >> 16 if dtype == "bfloat16" else small.astype(np.float16)
    bits = bits.astype(np.uint16) if dtype == "bfloat16" else bits.view(np.uint16)
    words = np.empty((32, 13), dtype=np.uint32)
    words[:, :8] = bits[..., 0] | bits[..., 1].astype(np.uint32) << 16
    pairs = np.array([0x4, 0x8, 0xC, 0x9, 0xD, 0xE])  # two columns of four, the lower one first
    nibbles = pairs[random.integers(0, 6, (32, 8))].astype(np.uint32)
    words[:, 8] = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(1, dtype=np.uint32)
    words[:, 9:] = random.integers(-9, 9, (32, 4)).astype(np.float32).view(np.uint32)
    a, b, d = np.zeros((16, 32)), np.empty((32, 8)), np.empty((16, 8))
    for i in range(4):
        row, four = GROUP + 8 * (i % 2), LANES % 4 + 4 * (i // 2)
        two = nibbles[LANES // 4 * 4 + 2 * half + i // 2, LANES % 4 + 4 * (i % 2)]
        for e in range(2):
            a[row, 4 * four + (two >> 2 * e & 3)] = small[:, i, e]
            b[PAIR + 8 * i + e, GROUP] = small[:, 4 + i, e]
        d[GROUP + 8 * (i // 2), PAIR + i % 2] = words[:, 9 + i].copy().view(np.float32)
    answer = primitive(f"mma_sparse_{dtype}_{half}", words).view(np.float32).reshape(32, 4)
    for i in range(4):
        assert np.array_equal(answer[:, i], (a @ b + d)[GROUP + 8 * (i // 2), PAIR + i % 2])


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_mma_sparse_of_codes(primitive, codes):
    """Small integers, which e4m3 holds exactly, as do sums of them."""
    random = np.random.default_rng(24)
    small = random.integers(-8, 9, (32, 8, 4)).astype(np.int8)
    start = random.integers(-9, 9, (32, 4)).astype(np.int32 if codes == "int8" else np.float32)
    words = np.empty((32, 13), dtype=np.uint32)
    floats = torch.from_numpy(small.astype(np.float32)).to(torch.float8_e4m3fn)
    as_stored = floats.view(torch.uint8).numpy() if codes == "fp8" else small
    words[:, :8] = np.ascontiguousarray(as_stored).view(np.uint32)[..., 0]
    pairs = np.array([0x4, 0x8, 0xC, 0x9, 0xD, 0xE])  # two columns of four, the lower one first
    nibbles = pairs[random.integers(0, 6, (32, 8))].astype(np.uint32)
    words[:, 8] = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(1, dtype=np.uint32)
    words[:, 9:] = start.view(np.uint32)
    a, b, d = np.zeros((16, 64)), np.empty((64, 8)), np.empty((16, 8))
    for i in range(4):
        row = GROUP + 8 * (i % 2)
        for e in range(4):
            four = 2 * (LANES % 4) + 8 * (i // 2) + e // 2
            giver = LANES // 4 * 4 + 2 * (i // 2) + i % 2
            place = nibbles[giver, four % 8] >> 2 * (e % 2) & 3
            a[row, 4 * four + place] = small[:, i, e]
            b[4 * (LANES % 4) + 16 * i + e, GROUP] = small[:, 4 + i, e]
        d[GROUP + 8 * (i // 2), PAIR + i % 2] = start[:, i]
    answer = primitive(f"mma_sparse_{codes}", words).view(start.dtype).reshape(32, 4)
    for i in range(4):
        assert np.array_equal(answer[:, i], (a @ b + d)[GROUP + 8 * (i // 2), PAIR + i % 2])


def test_metadata_that_do_not_rise_are_an_error(driver):
    words = np.zeros((32, 13), dtype=np.uint32)
    command = [str(driver("primitives_driver", "plain")), "mma_sparse_float16_0", "0"]
    ran = subprocess.run(command, input=words.tobytes(), capture_output=True, text=False)
    assert ran.returncode == EMULATOR_EXIT_CODE and b"not in rising order" in ran.stderr


def test_mbarriers(primitive):
    words = random_words(3, 32, 4, seed=21)
    assert np.array_equal(primitive("mbarriers", words).reshape(3, 32, 4), words[:, ::-1])


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_runs(primitive, architecture):
    words = random_words(3, 32, 4, seed=22)
    answer = primitive("runs", words, ARCHITECTURE=architecture)
    assert np.array_equal(answer.reshape(3, 32, 4), words[:, ::-1])


def test_clusters(primitive):
    words = random_words(256, seed=23)
    assert np.array_equal(primitive("clusters", words), np.tile(words, 2))


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(primitive, transposed):
    words = random_words(256, seed=3)
    rows = np.random.default_rng(4).permutation(64)[:32]  # of 16 bytes
    case = "ldmatrix_x4" + "_transposed" * transposed
    answer = primitive(case, np.concatenate([words, rows * 16])).reshape(32, 4)
    loaded = halves(words).reshape(64, 8)[rows].reshape(4, 8, 8)  # [matrix, row, column]
    if transposed:
        loaded = loaded.transpose(0, 2, 1)
    for i in range(4):
        matrix = loaded[i].astype(np.uint32)
        wanted = matrix[GROUP, PAIR] | matrix[GROUP, PAIR + 1] << 16
        assert np.array_equal(answer[:, i], wanted)


def test_store_transposed(primitive):
    """Lane i's address, here the (31 - i)th, gets column i % 8 of matrix i / 8."""
    words = random_words(32, 4, seed=9)
    matrices = halves(words.T.copy()).reshape(4, 8, 8)  # register, row, column
    wanted = matrices.transpose(0, 2, 1).reshape(32, 8)[::-1]
    assert np.array_equal(halves(primitive("store_transposed_x4", words)).reshape(32, 8), wanted)


def test_transpose(primitive):
    words = random_words(32, seed=14)
    matrix = halves(words).reshape(8, 8).astype(np.uint32)  # lane 4r + p has columns 2p, 2p + 1
    wanted = matrix.T[GROUP, PAIR] | matrix.T[GROUP, PAIR + 1] << 16
    assert np.array_equal(primitive("transpose", words), wanted)


def test_shuffles(primitive):
    words = random_words(2, 32, seed=5)
    answer = primitive("shuffles", words).reshape(2, 32, 9)
    sources = [
        np.full(32, 5),
        LANES // 8 * 8 + 5,
        LANES ^ 21,
        # Of a group of 8 lanes, an earlier group may be read, a later one not.
        np.where(LANES % 16 < 8, LANES, LANES ^ 12),
        np.where(LANES >= 3, LANES - 3, LANES),
        np.where(LANES % 16 >= 3, LANES - 3, LANES),
        np.where(LANES < 25, LANES + 7, LANES),
        np.where(LANES % 16 < 9, LANES + 7, LANES),
        np.where(LANES % 2 == 0, LANES ^ 2, 31),
    ]
    for i, source in enumerate(sources):
        assert np.array_equal(answer[:, :, i], words[:, source])


def test_votes(primitive):
    words = random_words(2, 32, seed=6)
    words[1] |= 1
    bits = ((words & 1) << LANES.astype(np.uint32)).sum(axis=1)
    some = (LANES >= 8) & (LANES < 16)
    wanted = np.zeros((2, 32, 5), dtype=np.uint32)
    wanted[..., 0] = bits[:, None]
    wanted[..., 1] = 1
    wanted[1, :, 2] = 1
    wanted[:, some, 3] = (bits & 0xFF00)[:, None]
    wanted[:, ~some, 4] = (bits & 0xFFFF00FF)[:, None]
    assert np.array_equal(primitive("votes", words).reshape(2, 32, 5), wanted)


def test_bits(primitive):
    words = random_words(64, seed=7)
    words[:33] = [0, *(1 << np.arange(32))]
    texts = [f"{word:032b}" for word in words]
    wanted = [
        (t.count("1"), (t + "1").index("1"), (t[::-1].find("1") + 1), int(t[::-1], 2))
        for t in texts
    ]
    assert primitive("bits", words).reshape(64, 4).tolist() == [list(row) for row in wanted]


def test_integers(primitive):
    words = random_words(2**16, 3, seed=8)
    a, b, c = words.T.astype(np.uint64)
    a_bytes, b_bytes = (part.view(np.uint8).reshape(-1, 8)[:, :4].astype(np.uint64) for part in
                        (a.copy(), b.copy()))  # fmt: skip
    low, high = a & 0xFFFF, a >> 16
    both = np.concatenate([a_bytes, b_bytes], axis=1)
    nibbles = np.stack([c >> (4 * i) & 15 for i in range(4)], axis=1)
    picked = np.take_along_axis(both, (nibbles & 7).astype(np.int64), axis=1)
    picked = np.where(nibbles & 8, np.where(picked & 0x80, 0xFF, 0), picked)
    wanted = [
        c + low * b_bytes[:, 0] + high * b_bytes[:, 1],
        (picked.astype(np.uint64) << (8 * np.arange(4, dtype=np.uint64))).sum(axis=1),
        c + low * b_bytes[:, 2] + high * b_bytes[:, 3],
    ]
    answer = primitive("integers", words).reshape(-1, 3)
    for i, column in enumerate(wanted):
        assert np.array_equal(answer[:, i], column.astype(np.uint32))


def test_conversions(primitive):
    """All 16-bit floats to fp32, and fp32 to 16 bits: any bits, ties, limits and NaN."""
    words = random_words(2**16, seed=9) & 0xFFFF0000 | np.arange(2**16, dtype=np.uint32)
    # Then values halfway between two of fp16, those just beside, and the limits.
    values = to_float32(np.arange(0x7C00), "float16")
    halfway = (values[:-1] + values[1:]) / 2
    beside = np.nextafter(halfway, np.float32([[0], [np.inf]]))
    limits = np.float32([65520, np.nextafter(np.float32(65520), np.float32(0)), 1e-8, 2.0**-25])
    ties = np.concatenate([halfway, *beside, limits]).view(np.uint32)
    assert len(ties) <= 2 * 2**16
    for part in (words, *np.resize(ties, (2, 2**16))):
        answer = primitive("conversions", part).reshape(-1, 6)
        values = part.view(np.float32)
        for i, dtype in enumerate((torch.float16, torch.bfloat16)):
            wanted = torch.from_numpy(values.copy()).to(dtype).view(torch.int16).numpy()
            wanted = np.where(np.isnan(values), 0x7FFF, wanted.view(np.uint16))
            assert np.array_equal(answer[:, i], wanted)
        for i, name in enumerate(("float16", "bfloat16")):
            wanted = to_float32(part & 0xFFFF, name)
            result = answer[:, 2 + i].copy().view(np.float32)
            assert np.array_equal(result, wanted, equal_nan=True)
            assert np.array_equal(np.signbit(result), np.signbit(wanted))
        for i in range(2):
            alone = answer[:, i]
            assert np.array_equal(answer[:, 4 + i], alone | np.roll(alone, -1) << 16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_widened_codes(primitive, dtype):
    """Every code of 8 and 4 bits, in every byte of a word, is the same number in 16 bits."""
    bytes_ = np.stack([np.roll(np.arange(256), 67 * i) for i in range(4)], 1).astype(np.uint8)
    words = np.resize(bytes_.view(np.uint32).ravel(), 2**16)
    answer = np.ascontiguousarray(primitive(f"widened_{dtype}", words).reshape(-1, 10)[:256])
    result = to_float32(answer.view(np.uint16), dtype).reshape(256, 10, 2)
    fp8 = torch.from_numpy(bytes_).view(torch.float8_e4m3fn).float().numpy()
    allowed = ~np.isnan(fp8)
    assert np.array_equal(result[:, :2].reshape(256, 4)[allowed], fp8[allowed])
    int8 = bytes_.view(np.int8).astype(np.float32)
    assert np.array_equal(result[:, 2:4].transpose(0, 2, 1).reshape(256, 4), int8)
    nibbles = bytes_.view(np.uint32) >> (4 * np.arange(8, dtype=np.uint32)) & 15
    int4 = (nibbles ^ 8).astype(np.float32) - 8
    assert np.array_equal(result[:, 4:8].transpose(0, 2, 1).reshape(256, 8), int4)
    unit = 1 if dtype == "float16" else 64
    assert np.array_equal(result[:, 8:].reshape(256, 4) * unit, bytes_.astype(np.float32) - 128)


def test_approximations(primitive):
    """Within two units in the last place; subnormals are zero on both sides."""
    words = random_words(2**16, seed=15)
    words[: 2**15] = np.random.default_rng(16).uniform(-160, 140, 2**15).astype("f4").view("u4")
    special = [0, -0.0, 1, -1, 127.99, 128, -126, -126.01, np.inf, -np.inf, np.nan, 1e-40]
    words[: len(special)] = np.float32(special).view("u4")
    tiny = 2.0**-126
    with np.errstate(all="ignore"):
        values = words.view(np.float32).astype(np.float64)
        values = np.where(np.abs(values) < tiny, np.copysign(0, values), values)
        exact = np.stack([np.exp2(values), 1 / values], 1)
        exact = np.where(np.abs(exact) < tiny, 0, exact)
        exact = np.where(np.abs(exact) >= 2.0**128, np.copysign(np.inf, exact), exact)
        result = primitive("approximations", words).view(np.float32).reshape(-1, 2).astype("f8")
        near = np.abs(result - exact) <= 2.0**-22 * np.abs(exact)
    near |= (exact == 0) & (np.abs(result) <= 1.001 * tiny)
    assert (near | (result == exact) | (np.isnan(result) & np.isnan(exact))).all()


def test_named_barriers(primitive):
    words = random_words(128, seed=10)
    wanted = np.concatenate([words[:64][::-1], words[64:][::-1]])  # 3 and 5 times
    assert np.array_equal(primitive("named_barriers", words), wanted)


def test_async_copies(primitive):
    words = random_words(64, 4, seed=11)
    wanted = np.tile(words, 3).reshape(64, 3, 4)
    third = np.arange(64) % 3 == 0
    wanted[third, 0] = 0
    wanted[third, 1, 2:] = 0
    wanted[third, 2, 3] = 0
    assert np.array_equal(primitive("async_copies", words).reshape(64, 3, 4), wanted)


def test_loads_and_stores(primitive):
    words = random_words(64, 4, seed=12)
    order = [0, 1, 2, 3, 0, 1, 0, 0, 0, 0, 0, 1, 3, 0, 1, 2, 3, 0, 0, 1, 3]
    wanted = words[:, order]
    wanted[:, 7] &= 0xFFFF
    wanted[:, 8] >>= 16
    answer = primitive("loads", words).reshape(64, 22)
    assert np.array_equal(answer[:, :21], wanted)
    # A byte between those of another word.
    assert np.array_equal(answer[:, 21], words[:, 1] & 0xFF | words[:, 0] >> 8 & 0xFF00)


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
def test_atomics(driver, sanitizer):
    words = random_words(64, seed=13)
    command = [str(driver("primitives_driver", sanitizer)), "atomics", *map(str, SEEDS)]
    ran = subprocess.run(command, input=words.tobytes(), capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr.decode()
    total = int(words.sum(dtype=np.uint32))
    floats = np.float32((words & 0xFF).sum()).view(np.uint32)
    wanted = [total, total, np.bitwise_or.reduce(words), words.max(), floats]
    for answer in np.frombuffer(ran.stdout, dtype=np.uint32).reshape(len(SEEDS), -1):
        assert answer[:10].tolist() == wanted * 2
        # What a thread finds depends on the order of threads: each finds what one other has left.
        left = answer[10:] + words
        assert sorted(answer[10:].tolist()) == sorted({0, *left.tolist()} - {total})


# ---- under nvcc ---------------------------------------------------------------------------------


HOPPER_ONLY = (
    "mbarrier.arrive.expect_tx.shared.b64", "fence.mbarrier_init.release.cluster",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [",
    "mapa.shared::cluster.u32", "mbarrier.arrive.release.cluster.shared::cluster.b64",
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", "ld.shared::cluster.v4.f32",
    "barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned",
)  # fmt: skip


@pytest.mark.skipif(find_nvcc() is None, reason="this machine has no nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_primitives_compile_to_the_meant_instructions(tmp_path, architecture):
    text, _ = compile_cuda(KERNELS / "emulator" / "primitives_driver.cpp", architecture, tmp_path)
    for instruction in (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", "ld.shared.u8", "st.shared.u8",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
        "cp.async.cg.shared.global", "cp.async.ca.shared.global", "cp.async.commit_group",
        "cp.async.wait_group", "ld.global.L1::no_allocate.v4.u32", "ld.global.nc.v4.u32",
        "ld.global.cg.v4.f32", "ld.shared.v4.u32", "st.shared.v4.f32", "st.shared.u16",
        "dp2a.lo.u32.u32", "dp2a.hi.u32.u32", "prmt.b32",
        "cvt.rn.f16.f32", "cvt.rn.bf16.f32", "cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32",
        "mbarrier.init.shared.b64", "mbarrier.arrive.shared.b64",
        "cp.async.mbarrier.arrive.noinc.shared.b64", "createpolicy.fractional.L2::evict_first.b64",
        "cp.async.cg.shared.global.L2::cache_hint",
        f"mbarrier.{'try' if architecture == 'sm_90a' else 'test'}_wait.parity.shared.b64",
        "movmatrix.sync.aligned.m8n8.trans.b16", "ex2.approx.ftz.f32", "rcp.approx.ftz.f32",
        "bar.sync", *(HOPPER_ONLY if architecture == "sm_90a" else ()),
    ):  # fmt: skip
        assert instruction in text, instruction
