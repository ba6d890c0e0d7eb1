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
model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="unified_max")
import transformers
print(transformers.__version__, type(model.model.layers[0].mlp.up_proj).__name__)
print(model.config._attn_implementation)
"""


def python(code, *args, **env):
    # An environment of its own: what the tests around it set must not reach it.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLASHSPARSE_")}
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    inherited["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    # Collecting garbage would be a fifth of the time of so many imports.
    code = f"import gc; gc.disable()\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd="/",
        env={**inherited, **env},
        timeout=300,
    )


def loaded_type(imports, path, **env):
    """The type of a layer of a packed checkpoint; our attention is known, too."""
    result = python(f"import sys; path = sys.argv[1]\n{imports}\n{PRINT_TYPE}", path, **env)
    assert result.returncode == 0, result.stderr
    version, name, attention = result.stdout.split()[-3:]
    assert attention == "unified_max"
    assert version == transformers.__version__  # the one under test, not another in the environment
    return name


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("", marks=pytest.mark.oldest_transformers),
        pytest.param("import transformers.modeling_utils", marks=pytest.mark.slow),
        pytest.param("import transformers.quantizers", marks=pytest.mark.slow),
        pytest.param("import torch", marks=pytest.mark.oldest_transformers),
        pytest.param("import peft", marks=pytest.mark.slow),
        # Looking a module up is not importing it.
        pytest.param(
            "import torch, importlib.util as u; u.find_spec('transformers.quantizers.auto')",
            marks=pytest.mark.slow,
        ),
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


@pytest.mark.slow
def test_it_can_be_switched_off():
    code = (
        "import torch\nfrom transformers.quantizers import auto\n"
        "print('flashsparse' in auto.AUTO_QUANTIZER_MAPPING)"
    )
    assert "flashsparse" in transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING
    for switch in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "FLASHSPARSE_AUTOLOAD"):
        assert python(code, **{switch: "0"}).stdout.strip() == "False"


REFUSED = """
import sys
from transformers import AutoModelForCausalLM
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
except ValueError as error:
    print(error)
from flashsparse_plugin.integrations import hf
hf.register()
print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1]).model.layers[0].mlp.up_proj))
"""


@pytest.mark.slow
def test_switched_off_it_leaves_no_packed_checkpoint_to_chance(llama):
    """transformers would warn of a method that it does not know, and fill layers at random."""
    result = python(REFUSED, llama.packed, FLASHSPARSE_AUTOLOAD="0")
    refusal, loaded = result.stdout.splitlines()
    assert str(llama.packed) in refusal and "is packed by flashsparse" in refusal
    assert "unset FLASHSPARSE_AUTOLOAD, or call" in refusal and "SparseLinear" in loaded


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
