# SPDX-License-Identifier: Apache-2.0
"""`--sparse-method` and `--decode-attention` on the command line, and what becomes of them."""

import json
import shlex
import subprocess
import sys

import pytest
from documents import DOCUMENTS, commands, inline
from vllm_processes import run_code

from flashsparse_plugin.formats import format_names
from flashsparse_plugin.integrations import vllm as plugin
from flashsparse_plugin.integrations.vllm.compat import TESTED
from flashsparse_plugin.integrations.vllm.settings import (
    SettingsError,
    fold,
    merge,
    methods,
    settings_of,
)

# Parses `lines` as `vllm` does.
PARSE = """
import contextlib, io, json, sys
from vllm.entrypoints.cli.benchmark import main as bench
from vllm.entrypoints.cli import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

results = []
for line in lines:
    sys.argv = ["vllm", *line]
    parser = FlexibleArgumentParser()
    subparsers = parser.add_subparsers(dest="subparser")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            for module in (serve, bench):
                for command in module.cmd_init():
                    command.subparser_init(subparsers)
            found = parser.parse_args(line)
            left = [name for name in ("sparse_method", "decode_attention") if hasattr(found, name)]
            backend = found.attention_backend
            results.append({"quantization": found.quantization, "extra": found.additional_config,
                            "attention": getattr(backend, "name", backend), "left": left})
        except SystemExit as end:
            results.append({"exit": end.code, "text": out.getvalue()})
open(path, "w").write(json.dumps(results))
"""


def documented():
    """The command lines of vLLM that the documents show."""
    texts = [document.read_text() for document in DOCUMENTS]
    shown = [line for text in texts for line in [*commands(text), *inline(text)]]
    return sorted({line for line in shown if line.startswith("vllm serve ")})


@pytest.fixture(scope="module")
def parsed(processes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parsed")
    config, results, log = (folder / name for name in ("config.yaml", "results.json", "log"))
    config.write_text("model: m\nsparse-method: tiled_csl\n")
    method = ["--sparse-method", "tiled_csl"]
    lines = {
        "serve": ["serve", "m", *method],
        "equals": ["serve", "m", "--sparse-method=auto"],
        "none": ["serve", "m", "--sparse-method", "none"],
        "absent": ["serve", "m"],
        "before": ["serve", "m", *method, "--additional-config", '{"x": 1}'],
        "after": [
            "serve",
            "m",
            "--additional-config",
            '{"flashsparse": {"sparsity": 0.5}}',
            *method,
        ],
        "yaml": ["serve", "--config", str(config)],
        "latency": ["bench", "latency", "--model", "m", *method],
        "throughput": ["bench", "throughput", "--model", "m", *method],
        "wrong": ["serve", "m", "--sparse-method", "csr"],
        "wrong pattern": ["serve", "m", "--sparse-method", "2:4-int7"],
        "pattern": ["serve", "m", "--sparse-method", "2:4-int8"],
        "conflict": ["serve", "m", *method, "--quantization", "fp8"],
        "agreement": ["serve", "m", *method, "--quantization", "flashsparse"],
        "attention": ["serve", "m", "--decode-attention", "unified_max"],
        "attention default": ["serve", "m", "--decode-attention", "default"],
        "attention twice": [
            *("serve", "m", "--decode-attention", "unified_max"),
            *("--attention-backend", "CUSTOM"),
        ],
        "attention conflict": [
            *("serve", "m", "--decode-attention", "unified_max"),
            *("--attention-backend", "FLASH_ATTN"),
        ],
        "attention config": [
            *("serve", "m", "--decode-attention", "unified_max"),
            *("--attention-config", '{"backend": "FLASHINFER"}'),
        ],
        "attention wrong": ["serve", "m", "--decode-attention", "fast"],
        "help": ["serve", "--help=FlashSparse"],
    } | {line: shlex.split(line)[1:] for line in documented()}
    code = processes.run(log, run_code, PARSE, {"lines": list(lines.values()), "path": results})
    assert code == 0, log.read_text()[-3000:]
    return dict(zip(lines, json.loads(results.read_text()), strict=True))


@pytest.mark.parametrize("name", ["serve", "yaml", "latency", "throughput", "agreement"])
def test_the_method_ends_in_vllms_own_fields(parsed, name):
    assert parsed[name] == {
        "quantization": "flashsparse",
        "extra": {"flashsparse": {"method": "tiled_csl"}},
        "attention": None,
        "left": [],
    }


def test_every_command_of_the_documents_is_understood(parsed):
    lines = documented()
    assert "vllm serve ./SmolLM2-pruned --sparse-method auto" in lines
    for line in lines:
        found = parsed[line]
        assert found.get("exit", 0) == 0, f"{line}: {found['text']}"
        if "--help" not in line:
            assert (found["quantization"] == "flashsparse") == ("--sparse-method" in line)
            assert (found["attention"] == "CUSTOM") == ("--decode-attention" in line)


def test_other_settings_are_kept_whatever_the_order(parsed):
    assert parsed["before"]["extra"] == {"x": 1, "flashsparse": {"method": "tiled_csl"}}
    merged = {"flashsparse": {"sparsity": 0.5, "method": "tiled_csl"}}
    assert parsed["after"]["extra"] == merged
    assert parsed["equals"]["extra"] == {"flashsparse": {"method": "auto"}}


def test_none_and_nothing_leave_quantization_alone(parsed):
    assert parsed["none"]["quantization"] is None
    assert parsed["absent"] == {"quantization": None, "extra": {}, "attention": None, "left": []}


def test_mistakes_are_errors_of_the_command_line(parsed):
    assert parsed["wrong"]["exit"] == 2
    for name in methods():
        assert name in parsed["wrong"]["text"]
    assert parsed["wrong pattern"]["exit"] == 2
    assert (
        "argument --sparse-method: '2:4-int7' is not a pattern" in parsed["wrong pattern"]["text"]
    )
    assert parsed["conflict"]["exit"] == 2
    assert "argument --sparse-method" in parsed["conflict"]["text"]
    assert "fp8" in parsed["conflict"]["text"]


def test_decode_attention_ends_in_vllms_field_for_the_backend(parsed):
    for name in ("attention", "attention twice"):
        assert parsed[name] == parsed["absent"] | {"attention": "CUSTOM"}
    assert parsed["attention default"] == parsed["absent"] | {"attention": "auto"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("attention conflict", ["argument --decode-attention", "FLASH_ATTN", "Drop one"]),
        ("attention config", ["argument --decode-attention", "FLASHINFER", "Drop one"]),
        ("attention wrong", ["--decode-attention", "unified_max", "default"]),
    ],
)
def test_decode_attention_and_another_backend_exclude_each_other(parsed, name, words):
    assert parsed[name]["exit"] == 2
    assert [word for word in words if word not in parsed[name]["text"]] == []


def test_help_has_a_group_of_its_own(parsed):
    text = parsed["help"]["text"]
    assert parsed["help"]["exit"] == 0
    assert "FlashSparse" in text and "--sparse-method" in text and "--decode-attention" in text
    assert all(name in text for name in methods())


def test_the_methods_come_from_the_registry():
    assert methods() == ("auto", *format_names(), "none")


def test_python_refuses_what_the_command_line_refuses():
    with pytest.raises(SettingsError, match="is not one of auto"):
        fold(None, None, "csr")
    with pytest.raises(SettingsError, match="exclude each other"):
        fold("awq", {}, "auto")
    assert fold("awq", {}, None) == ("awq", {})
    assert fold("awq", {}, "none")[0] == "awq"


def test_a_packed_checkpoint_is_not_served_as_another_format():
    from flashsparse_plugin import FlashSparseConfig

    stored = FlashSparseConfig(format="tiled_csl", ignore=[])
    assert merge(stored, {"method": "auto"}).format == "tiled_csl"
    assert merge(None, {"method": "auto", "batch": 16}).batch == 16
    assert merge(None, {"method": "auto"}).is_open
    with pytest.raises(SettingsError, match='"batch" is what --sparse-method auto chooses'):
        merge(None, {"method": "tiled_csl", "batch": 16})
    assert merge(stored, {"method": "none"}).dequantize
    assert merge(stored, {}).ignore == []
    named = settings_of({"flashsparse": {"prompts": "cusparselt"}})  # of earlier builds
    assert merge(stored, named) == merge(stored, {})
    with pytest.raises(SettingsError, match="packed as tiled_csl.*asks for other"):
        merge(stored, {"method": "other"})


def test_a_pattern_in_short_is_a_method(parsed):
    from flashsparse_plugin import FlashSparseConfig

    assert parsed["pattern"]["extra"] == {"flashsparse": {"method": "2:4-int8"}}
    named = {"n": 2, "m": 4, "values": "int8"}
    made = merge(None, {"method": "2:4-int8", "options": {"activations": "int8"}})
    assert (made.format, made.options) == ("nm_vector", {**named, "activations": "int8"})
    stored = FlashSparseConfig(format="nm_vector", options=named)
    assert merge(stored, {"method": "2:4"}).options == named
    with pytest.raises(SettingsError, match="packed as nm_vector.*asks for 2:4-fp8"):
        merge(stored, {"method": "2:4-fp8"})


# Registering.


BROKEN = """
import sys
from flashsparse_plugin.integrations import vllm as ours
import flashsparse_plugin.config
del flashsparse_plugin.config.QUANT_METHOD
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
print("flashsparse" in QUANTIZATION_METHODS, "dense goes on")
"""


def test_a_failure_to_register_leaves_vllm_alone(processes, tmp_path):
    log = tmp_path / "log"
    assert processes.run(log, run_code, BROKEN, FLASHSPARSE_STRICT="0") == 0
    assert "False dense goes on" in log.read_text()
    assert "could not register with vLLM" in log.read_text()
    assert "QUANT_METHOD" in log.read_text()  # the cause
    assert processes.run(log, run_code, BROKEN, FLASHSPARSE_STRICT="1") != 0
    assert "dense goes on" not in log.read_text()


def test_registering_twice_is_registering_once(processes, tmp_path):
    code = (
        "from flashsparse_plugin.integrations.vllm import register, arguments; register();"
        "from vllm.engine.arg_utils import EngineArgs; first = EngineArgs.__init__;"
        "register(); arguments.install(); print(EngineArgs.__init__ is first)"
    )
    log = tmp_path / "log"
    processes.run(log, run_code, code)
    assert log.read_text().strip().endswith("True"), log.read_text()


def test_importing_us_imports_no_vllm(environment):
    code = (
        "import sys, flashsparse_plugin.integrations.vllm as v, flashsparse_plugin as fs;"
        "fs.LLM; print('vllm' in sys.modules, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.strip() == "False False"


@pytest.mark.parametrize(
    ("release", "told"),
    [
        ("0.25.1", True),
        ("0.26.0", False),
        ("0.30.2", False),
        (".".join(map(str, TESTED[1])) + ".7+cpu", False),
        (f"{TESTED[1][0]}.{TESTED[1][1] + 1}.0.dev3+gabcdef", True),
        ("1.0.0", True),
        ("unknown", False),
    ],
)
def test_a_release_that_was_not_tested_is_told_of_in_one_line(release, told, monkeypatch, caplog):
    monkeypatch.setattr(plugin, "version", {"vllm": release}.__getitem__)
    monkeypatch.setattr(plugin, "_registered", False)
    plugin.register()
    lines = [each for each in caplog.messages if "flashsparse is tested with vLLM 0.26 to" in each]
    assert len(lines) == told
    assert all(f"this is {release}." in line and "\n" not in line for line in lines)
