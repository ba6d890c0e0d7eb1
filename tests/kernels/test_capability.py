# SPDX-License-Identifier: Apache-2.0
"""Every instruction set that this CPU has is forced, is the one in use, and passes the tests."""

from __future__ import annotations

import pytest
from kernel_capabilities import VARIABLE, print_capability, run_python, supported_capabilities


def test_an_unknown_capability_is_an_error_that_lists_the_others():
    result = print_capability("avx1024")
    assert result.returncode == 1
    assert f"{VARIABLE}=avx1024 names no kernels that this CPU can run" in result.stderr
    assert supported_capabilities()[-1] == "portable"


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["avx512", "avx2", "portable"])
def test_forced_capability_is_used_and_passes(capability):
    result = print_capability(capability)
    if capability not in supported_capabilities():
        assert "names no kernels that this CPU can run" in result.stderr
        return
    assert result.stdout.strip() == capability
    if capability == supported_capabilities()[0]:
        return  # the default: all the other tests run with it
    result = run_python(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_pack.py",
        "test_pack_bitmap.py", "test_linear.py", "test_codes.py", "test_lossless.py",
        capability=capability,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_widest_capability_is_the_default():
    assert print_capability("").stdout.strip() == supported_capabilities()[0]
