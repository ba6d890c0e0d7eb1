# SPDX-License-Identifier: Apache-2.0
"""With and without our import, from_pretrained knows the method; and nothing of ours breaks torch.

Each case needs a fresh interpreter.
"""

import os
import subprocess
import sys

import pytest
import transformers

PRINT_TYPE = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(path)
import transformers
print(transformers.__version__, type(model.model.layers[0].mlp.up_proj).__name__)
"""


def python(code, *args, **env):
    # An environment of its own: what the tests around it set must not reach it.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLASHSPARSE_")}
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    inherited["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd="/",
        env={**inherited, **env},
        timeout=300,
    )


def loaded_type(imports, path, **env):
    result = python(f"import sys; path = sys.argv[1]\n{imports}\n{PRINT_TYPE}", path, **env)
    assert result.returncode == 0, result.stderr
    version, name = result.stdout.split()[-2:]
    assert version == transformers.__version__  # the one under test, not another in the environment
    return name


@pytest.mark.oldest_transformers
@pytest.mark.parametrize(
    "imports",
    [
        "",
        "import transformers.modeling_utils",
        "import transformers.quantizers",
        "import torch",
        "import peft",
        # Looking a module up is not importing it.
        "import torch, importlib.util as u; u.find_spec('transformers.quantizers.auto')",
    ],
)
def test_no_import_of_ours_is_needed(imports, llama):
    assert loaded_type(imports, llama.packed) == "SparseLinear"


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import flashsparse_plugin",
        "import transformers.modeling_utils, flashsparse_plugin",
        "import flashsparse_plugin.integrations.hf.quantizer",
    ],
)
def test_our_import_is_enough(imports, llama):
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert loaded_type(imports, llama.packed, **off) == "SparseLinear"


@pytest.mark.oldest_transformers
def test_attention_is_known_without_an_import_of_ours(llama):
    code = (
        "import sys\nfrom transformers import AutoModelForCausalLM\n"
        "load = AutoModelForCausalLM.from_pretrained\n"
        "model = load(sys.argv[1], attn_implementation='unified_max')\n"
        "print(model.config._attn_implementation)"
    )
    ran = python(code, llama.packed)
    assert ran.stdout.strip() == "unified_max", ran.stderr


@pytest.mark.slow
def test_it_can_be_switched_off():
    code = (
        "import torch\nfrom transformers.quantizers import auto\n"
        "import transformers.modeling_utils\n"
        "print('flashsparse' in auto.AUTO_QUANTIZER_MAPPING)"
    )
    assert python(code).stdout.strip() == "True"
    for switch in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "FLASHSPARSE_AUTOLOAD"):
        assert python(code, **{switch: "0"}).stdout.strip() == "False"


def test_import_torch_imports_nothing_heavy():
    code = (
        "import sys, torch\n"
        "print(*sorted(m for m in sys.modules\n"
        "    if m.split('.')[0] in ('flashsparse_plugin', 'transformers', 'peft', 'pydantic')))"
    )
    result = python(code)
    assert result.stdout.split() == ["flashsparse_plugin", "flashsparse_plugin.autoload"]


BROKEN = """
import sys
sys.modules["flashsparse_plugin.config"] = None  # importing it raises ImportError
import torch, transformers.modeling_utils
print("alive")
"""


@pytest.mark.slow
def test_a_broken_install_warns_and_leaves_transformers_alone():
    result = python(BROKEN)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "alive"
    assert "flashsparse could not register with transformers" in result.stderr
    assert "flashsparse doctor" in result.stderr


@pytest.mark.slow
def test_strict_turns_the_warning_into_an_error():
    result = python(BROKEN, FLASHSPARSE_STRICT="1")
    assert result.returncode != 0
    assert "alive" not in result.stdout
    assert "flashsparse_plugin.config" in result.stderr


def test_strict_does_not_break_torch():
    code = BROKEN.replace(", transformers.modeling_utils", "")
    result = python(code, FLASHSPARSE_STRICT="1")
    assert result.stdout.strip() == "alive", result.stderr
