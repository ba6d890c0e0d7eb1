# SPDX-License-Identifier: Apache-2.0
"""The wheel and the editable install hold what they should, and nothing leaks out of them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(*args, **env):
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **env},
        timeout=600,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as `pip install .` builds it: isolated, against the torch of this environment; but not
    optimised, which takes most of the time and changes nothing in what it holds."""
    out = tmp_path_factory.mktemp("wheel")
    command = ["-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(out), str(ROOT)]
    result = python(*command, FLASHSPARSE_CUDA="OFF", SKBUILD_CMAKE_BUILD_TYPE="None")
    assert result.returncode == 0, result.stderr
    (path,) = out.iterdir()
    return path


@pytest.mark.slow
def test_one_wheel_for_every_python(wheel):
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"flashsparse_plugin", wheel.name.split("-py3")[0] + ".dist-info"}
    modules = ("integrations/hf/__init__.py", "formats/registry.py")
    for needed in ("_C_cpu.so", "py.typed", "dataflow/tables/h200.json", *modules):
        assert f"flashsparse_plugin/{needed}" in names
    assert not [name for name in names if name.endswith((".cpp", ".cu", ".h", ".cuh"))]


def test_torch_is_no_build_requirement():
    """An isolated build would download several GB."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    (requires,) = [line for line in lines if line.startswith("requires = ")]
    assert "torch" not in requires


def test_an_environment_without_torch_is_told_what_to_do(tmp_path):
    backend = ROOT / "kernels" / "build_backend"
    code = "import flashsparse_build; print(flashsparse_build.find_torch())"
    env = {"PYTHONPATH": str(backend), "FLASHSPARSE_TORCH_ROOT": str(tmp_path)}
    result = python("-c", code, **env)
    assert result.returncode != 0
    assert "pip install 'torch>=2.11'" in result.stderr and str(tmp_path) in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["integrations", "tests", "kernels", "benchmarks", "demo"])
def test_the_editable_install_exposes_no_global(name):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    assert python("-c", code).returncode == 0


def test_the_integrations_are_part_of_the_package():
    code = "import flashsparse_plugin.integrations.hf as hf; print(hf.__name__)"
    assert python("-c", code).stdout.strip() == "flashsparse_plugin.integrations.hf"


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, flashsparse_plugin; "
        "print(sorted({'torch', 'transformers', 'vllm', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", code).stdout.strip() == "[]"
