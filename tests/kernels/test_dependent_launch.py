# SPDX-License-Identifier: Apache-2.0
"""Products that begin before the preceding kernel has ended wait before they use what is its.

In the emulator that kernel writes at the last moment (kernels/emulator/last_kernel.h), so each test
of a product covers it. Here products that do not wait are caught, whatever the schedule.
"""

import emulated_decode as decode
import pytest
import torch
from emulated_exact_units import Plan as ExactPlan
from emulated_exact_units import random_case as exact_case
from emulated_gather import random_case as gather_case
from emulated_hybrid_units import Plan as HybridPlan
from emulated_hybrid_units import random_case as hybrid_case
from emulated_products import run
from emulated_sparse_24 import Plan as SparsePlan
from emulated_sparse_24 import random_case as sparse_case
from emulated_tiled_bitmap import random_case as bitmap_case
from emulation import SEEDS, compile_driver

from flashsparse_plugin.formats.pattern.options import PatternOptions


def cases(seed):
    """A product of each family, in several blocks that share rows where they can."""
    fp8 = PatternOptions(n=2, m=4, values="fp8_e4m3")
    # Where no launch is named, the host plans it.
    of_24 = {"seed": seed, "plan": SparsePlan(0, 1, 1, 2, 2, 2)}
    return {
        "sparse_24/linear_driver": sparse_case(27, 700, 6, 1, **of_24),
        "sparse_24/linear_codes_driver": sparse_case(27, 700, 6, 1, options=fp8, **of_24),
        "sparse_24/wgmma_driver": sparse_case(150, 300, 9, 1, seed=seed, plan=(-1, 1, 1, 3, 1)),
        "exact_units/linear_driver": exact_case(
            27, 700, 6, 1, plan=ExactPlan(0, 1, 1, 2, 2, 2), seed=seed
        ),
        "exact_units/wgmma_driver": exact_case(150, 300, 9, 1, plan=(-1, 1, 1, 3, 1), seed=seed),
        "hybrid_units/linear_driver": hybrid_case(
            27, 700, 6, 1, plan=HybridPlan(0, 1, 1, 2, 2, 2), seed=seed
        ),
        "tiled_bitmap/linear_driver": bitmap_case(27, 700, 6, 1, 0.5, seed=seed),
        "nm_gather/linear_driver": gather_case(
            70, 2000, 8, 4, 8, 8, 1, plan=(0, 2, 2, 2, 1), seed=seed
        ),
        "nm_gather/tiles_driver": gather_case(
            70, 600, 33, 4, 8, 32, 1, plan=(-1, 0, 0, 0, 0, 0, 0), seed=seed
        ),
    }


@pytest.mark.parametrize("driver", cases(0))
def test_a_product_that_does_not_wait_is_caught(driver):
    binary = compile_driver(driver, "plain")
    for seed in SEEDS:
        case = cases(seed)[driver]
        right, early = run(binary, [case]), run(binary, [case], WITHOUT_WAIT="1")
        assert right.returncode == 0, right.stderr.decode()
        y = torch.frombuffer(bytearray(right.stdout), dtype=torch.int16).view(case.x.dtype)
        assert y.isfinite().all()
        assert early.returncode != 0 or early.stdout != right.stdout, f"seed {seed}"


def test_decode_attention_that_does_not_wait_is_caught():
    binary = compile_driver("decode_driver", "plain")
    for seed in SEEDS:
        case = decode.random_decode(2, 1, 3, 64, 70, seed, page=16, splits=2, warps=2)
        right, early = decode.run(binary, [case]), decode.run(binary, [case], WITHOUT_WAIT="1")
        assert right.returncode == 0, right.stderr.decode()
        assert early.returncode != 0 or early.stdout != right.stdout, f"seed {seed}"
