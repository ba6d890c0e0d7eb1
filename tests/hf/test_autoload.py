# SPDX-License-Identifier: Apache-2.0
"""With and without our import, from_pretrained knows the method; and nothing of ours breaks torch.

Where the order of imports matters from the first one on, a case has a new interpreter; the others
are forks of one that has imported torch.
"""

import os
import subprocess
import sys

import pytest
import transformers
from forks import Forks
from transformers.quantizers import auto

LOAD = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="unified_max")
import transformers
print(transformers.__version__, type(model.model.layers[0].mlp.up_proj).__name__)
print(model.config._attn_implementation)
"""
UNKNOWN = (
    "from transformers.quantizers import auto; "
    "assert 'flashsparse' not in auto.AUTO_QUANTIZER_MAPPING"
)
ENTRY_POINT = "import torch; torch._import_device_backends()\n"


@pytest.fixture(scope="module")
def clean():
    """An environment of its own: what the tests around it set must not reach it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLASHSPARSE_")}
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    inherited["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    return inherited


@pytest.fixture(scope="module")
def forks(clean, tmp_path_factory):
    forks = Forks(tmp_path_factory.mktemp("forks"), clean)
    yield forks
    forks.close()


@pytest.fixture
def python(clean):
    def run(code, *args, **env):
        # Collecting garbage would be a fifth of the time of so many imports.
        command = [sys.executable, "-c", f"import gc; gc.disable()\n{code}", *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd="/", env={**clean, **env}, timeout=300
        )

    return run


def loads(ran):
    """A packed layer was loaded as one; our attention is known, too."""
    assert ran.returncode == 0, ran.stderr
    version, name, attention = ran.stdout.split()[-3:]
    assert attention == "unified_max"
    assert version == transformers.__version__  # the one under test, not another in the environment
    return name == "SparseLinear"


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("", marks=pytest.mark.oldest_transformers),
        # torch is imported by a module that we wait for.
        pytest.param("import transformers.modeling_utils", marks=pytest.mark.slow),
        pytest.param("import transformers.quantizers", marks=pytest.mark.slow),
    ],
)
def test_no_import_of_ours_is_needed(imports, llama, python):
    assert loads(python(imports + LOAD, llama.packed))


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("", marks=pytest.mark.oldest_transformers),
        pytest.param("import peft", marks=pytest.mark.slow),
        # Looking a module up is not importing it.
        pytest.param(
            "import importlib.util as u; u.find_spec('transformers.quantizers.auto')",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_import_of_ours_is_needed_after_torch(imports, llama, forks):
    assert loads(forks.run(ENTRY_POINT + imports + LOAD, llama.packed))


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import flashsparse_plugin",
        f"import transformers.modeling_utils; {UNKNOWN}; import flashsparse_plugin",
        "import flashsparse_plugin.integrations.hf.quantizer",
    ],
)
def test_our_import_is_enough(imports, llama, forks):
    """Where TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches off the entry point."""
    assert "flashsparse" in auto.AUTO_QUANTIZER_MAPPING
    assert loads(forks.run(imports + LOAD, llama.packed))


REFUSED = f"""
import sys
from transformers import AutoModelForCausalLM
{UNKNOWN}
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
except ValueError as error:
    print(error)
from flashsparse_plugin.integrations import hf
hf.register()
print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1]).model.layers[0].mlp.up_proj))
"""


@pytest.mark.slow
def test_switched_off_it_leaves_no_packed_checkpoint_to_chance(llama, forks):
    """transformers would warn of a method that it does not know, and fill layers at random."""
    result = forks.run(ENTRY_POINT + REFUSED, llama.packed, FLASHSPARSE_AUTOLOAD="0")
    refusal, loaded = result.stdout.splitlines()
    assert str(llama.packed) in refusal and "is packed by flashsparse" in refusal
    assert "unset FLASHSPARSE_AUTOLOAD, or call" in refusal and "SparseLinear" in loaded


def test_import_torch_imports_nothing_heavy(python):
    code = (
        "import sys, torch\n"
        "print(*sorted(m for m in sys.modules\n"
        "    if m.split('.')[0] in ('flashsparse_plugin', 'transformers', 'peft', 'pydantic')))"
    )
    assert python(code).stdout.split() == ["flashsparse_plugin", "flashsparse_plugin.autoload"]


BROKEN = f"""
import sys
sys.modules["flashsparse_plugin.config"] = None  # importing it raises ImportError
{ENTRY_POINT}
print("torch is alive", flush=True)
"""


@pytest.mark.slow
def test_a_broken_install_warns_and_leaves_transformers_alone(forks):
    result = forks.run(BROKEN + "import transformers.modeling_utils\nprint('alive')")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "alive"
    assert "flashsparse could not register with transformers" in result.stderr
    assert "flashsparse doctor" in result.stderr


@pytest.mark.slow
def test_strict_turns_the_warning_into_an_error(forks):
    code = BROKEN + "import transformers.modeling_utils\nprint('alive')"
    result = forks.run(code, FLASHSPARSE_STRICT="1")
    assert result.returncode != 0
    assert result.stdout.strip() == "torch is alive", result.stderr
    assert "flashsparse_plugin.config" in result.stderr
