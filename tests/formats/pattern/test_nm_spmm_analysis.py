# SPDX-License-Identifier: Apache-2.0
"""NM-SpMM's analysis as code, held against the paper's own numbers."""

import itertools

import pytest

from flashsparse_plugin.formats.pattern.nm_spmm import NMSpmm, analysis
from flashsparse_plugin.formats.pattern.nm_spmm.analysis import TABLE_I, WIDE, Blocking
from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.gpu import GPUS, Gpu

A100_SHARED = 192 << 10  # Table III
PATTERNS = {zeros: PatternOptions(n=n, m=32, vector_length=32)
            for zeros, n in ((0.0, 32), (0.5, 16), (0.625, 12), (0.75, 8), (0.875, 4))}  # fmt: skip
H200, _, A100 = GPUS


def test_peaks_are_those_of_table_iii():
    cards = (
        ("A100", 1410e6, 108, (8, 0), 19.5),
        ("RTX 3090", 1695e6, 82, (8, 6), 35.6),
        ("RTX 4090", 2520e6, 128, (8, 9), 82.6),
    )
    for name, clock, multiprocessors, capability, tflops in cards:
        gpu = Gpu(name, 1e12, 2e12, clock, 1e14, multiprocessors, capability)
        assert gpu.float32_peak / 1e12 == pytest.approx(tflops, rel=0.005)


def test_intensity_is_equation_3_and_falls_with_sparsity():
    large = TABLE_I["large"]
    assert large.intensity(32, 16) == 2 * 64 * 128 * 16 / (64 * 32 + 16 * 128 + 2 * 64 * 128)
    by_zeros = [large.intensity(32, 32 * (1 - zeros)) for zeros in PATTERNS]
    assert by_zeros == sorted(by_zeros, reverse=True)


def test_a_panel_takes_at_most_half_of_shared_memory():
    """Equations 4 and 5: the most columns fit, and a window more would not."""
    for blocking, (zeros, options) in itertools.product(TABLE_I.values(), PATTERNS.items()):
        columns = blocking.most_columns(options, A100_SHARED)
        kept = columns * (1 - zeros)
        assert columns % 32 == 0 and blocking.shared_bytes(columns, kept) <= A100_SHARED / 2
        assert blocking.shared_bytes(columns + 32, kept + options.n) > A100_SHARED / 2
    assert TABLE_I["large"].most_columns(PATTERNS[0.5], A100_SHARED) == 192  # by hand


def test_packing_makes_the_intensity_at_75_percent_higher_than_at_62_5():
    """Section IV-E: through the larger panels that fit, x being packed."""
    large = TABLE_I["large"]
    columns = large.most_columns(PATTERNS[0.625], A100_SHARED)
    whole = large.intensity(columns, columns * 12 / 32)
    share = analysis.used_share(PATTERNS[0.75], large.rows)
    columns = large.most_columns(PATTERNS[0.75], A100_SHARED, share)
    assert large.intensity(columns * share, columns / 4) > whole


def test_compute_to_memory_ratio_is_equation_6():
    assert [each.compute_to_memory for each in TABLE_I.values()] == [2, 32 / 12, 4]
    assert Blocking(64, 256, 8, 16).compute_to_memory == 128 / 24
    assert all(each.registers <= analysis.REGISTERS for each in (*TABLE_I.values(), WIDE))
    assert WIDE.registers == 152


def test_8x8_tiles_are_fed_where_there_are_64_units_and_not_where_there_are_128():
    large = TABLE_I["large"]
    assert large.reach(A100) == 1
    assert large.reach(H200) < WIDE.reach(H200) < 1


def test_x_is_packed_from_70_percent_of_zeros_on():
    """The paper's threshold, for its vectors of 32 rows and blocks of 128."""
    packs = {zeros: analysis.should_pack(options, 128) for zeros, options in PATTERNS.items()}
    assert packs == {0.0: False, 0.5: False, 0.625: False, 0.75: True, 0.875: True}
    same = PatternOptions(n=16, m=32, vector_length=128)  # one pattern a block: N/M
    assert analysis.used_share(same, 128) == 0.5


def test_the_roofline():
    assert analysis.attainable(2.0, 8e12, 1e13) == 4e12
    assert analysis.attainable(200.0, 8e12, 1e13) == 1e13


def test_estimates_say_where_the_kernel_pays():
    """More zeros take less time, never less than the bytes do; the library is no faster."""
    for tokens in (1, 64, 4096):
        times = []
        for zeros, options in PATTERNS.items():
            nbytes = int(4 * 4096 * 4096 * (1 - zeros))
            scheme = NMSpmm().scheme(NMSpmm.dtypes[0], options.model_dump())
            arguments = (scheme, (4096, 4096), nbytes, tokens, H200)
            times.append(NMSpmm().seconds("sparse", *arguments))
            assert times[-1] > nbytes / H200.memory
            if zeros >= 0.5:
                assert times[-1] < NMSpmm().seconds("library", *arguments)
        # Of one token the planner compares launches with and without packing, whose costs meet.
        assert all(later < 1.05 * each for each, later in itertools.pairwise(times))
    about = (NMSpmm().scheme(NMSpmm.dtypes[0], options.model_dump()), (4096, 4096), 1 << 25, 4096)
    assert NMSpmm().seconds("library", *about, H200) > 2 * 4096**3 / H200.float32_peak
