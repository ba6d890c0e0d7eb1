# SPDX-License-Identifier: Apache-2.0
"""The commands and the code of the documents do what they say.

What needs a GPU, a server or minutes is listed here by name with the reason. A command or a block
that is neither run nor listed is an error, and so is an entry that is in no document: the lists are
meant to get shorter.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch
from documents import DOCUMENTS, ROOT, blocks, commands, inline
from tiny_causal_lms import VOCAB, character_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.main import get_command
from typer.testing import CliRunner

from flashsparse_plugin.cli import app
from flashsparse_plugin.pruning import methods

TREE = "compiles and tests this very tree, for minutes"
GPU = "measures on a GPU"
SERVER = (
    "starts a server: tests/vllm/test_arguments.py has vLLM parse it, test_serve.py starts some"
)
INSTALL = "installs for minutes; tests/test_packaging.py builds the wheel"

HUB = "wants a network: tests/cli/test_hub.py has a Hub of its own"

FOREIGN = "wants a checkpoint of another tool: tests/checkpoint/test_foreign.py has some"

SHOWN = [command for document in DOCUMENTS for command in commands(document.read_text())]
NOT_RUN = {
    "flashsparse doctor": "takes long, and judges the machine: tests/cli/test_doctor.py",
    "flashsparse tune MODEL --sparsity 0.7": f"{GPU}: tests/cli/test_tune.py pretends one",
    "flashsparse tune 12288x4096,4096x4096,11008x4096,4096x11008 --plot times.png": GPU,
    "flashsparse tune 28672x4096,4096x4096 --sparsity 0.5 --sparsity 0.8": GPU,
    "flashsparse eval tried-packed --tasks arc_easy,hellaswag --limit 200": "wants lm-eval and its "
    "data: tests/evaluation/test_tasks.py",
    "python demo/stories15m.py": "downloads a model; tests/test_stories15m.py converts a tiny one",
    "python demo/minilm.py": "downloads a model; tests/test_demo_models.py makes a package",
    "python benchmarks/embeddings.py": "measures for minutes",
    "make demo": "downloads a model; tests/cli/test_demo.py runs the program on a tiny one",
    "make serve": SERVER,
    **dict.fromkeys(
        [
            "make docs",
            "make env",
            "make lint",
            "make test-fast",
            "make test",
            "make test-newest",
            "make fuzz",
            "make soak",
        ],
        TREE,
    ),
    "python benchmarks/recovery.py --samples 16 --window 128 --tokens 2048": "measures for minutes",
    "python benchmarks/recovery.py --samples 16 --window 128 --tokens 2048 --rules 50%,70%,2:4 "
    "--methods wanda --lora": "as above",
    "python benchmarks/recovery.py --model build/cache/stories15M --text build/cache/burgess.txt "
    "--context 256 --samples 64 --window 128 --methods wanda --lora": "as above",
    "pip download --no-deps --no-binary bigbench bigbench==1.0.0": "downloads 358 MB",
    "python demo/bigbench.py bigbench-1.0.0.tar.gz": "wants that: tests/test_bigbench.py makes one",
    'python benchmarks/quality.py --rules "dense;50% zeros;2:4" --tasks '
    "build/cache/bigbench/*.yaml": "wants lm-eval: tests/evaluation/test_tasks.py",
    ".venv/bin/pytest tests/formats": TREE,
    **dict.fromkeys(
        (each for each in SHOWN if each.startswith("git clone ")), "has no address yet"
    ),
    "pip install 'torch>=2.11'": INSTALL,
    "pip install vllm==0.26.0": INSTALL,
    "pip install .": INSTALL,
    "pip install '.[hf]'": INSTALL,
    "FLASHSPARSE_CUDA_ARCHS=90a-real pip install --no-build-isolation --no-deps -e .": INSTALL,
    "python kernels/resources.py": "needs the CUDA object: tests/test_cuda_object.py",
    "python benchmarks/dataflow.py && python benchmarks/tables.py": "write into this tree: "
    "tests/benchmarks/test_dataflow.py and tests/test_documents.py compare what is there",
    "python benchmarks/gpu/attention.py --check": GPU,
    "python benchmarks/gpu/attention.py --speed": GPU,
    "python benchmarks/gpu/gemm.py": GPU,
    "python benchmarks/gpu/gemm.py --check": GPU,
    "python benchmarks/gpu/sweep.py --kernels dense --layers 4096x4096 --tokens 8": GPU,
    "python benchmarks/gpu/recover.py --shape llama-3-8b": GPU,
    "python benchmarks/gpu/recover.py --only command --command-layers 20 --command-steps 40": GPU,
    "python benchmarks/gpu/spmm.py": GPU,
    "python benchmarks/gpu/spmm.py --check": GPU,
    "python benchmarks/gpu/spmm.py --sanitize": GPU,
    "python benchmarks/gpu/sweep.py --kernels tiled_csl,tiled_bitmap": GPU,
    "python benchmarks/gpu/sweep.py --kernels tiled_bitmap.many --check": GPU,
    "python benchmarks/gpu/sweep.py --kernels tiled_bitmap.many": GPU,
    "python benchmarks/gpu/sweep.py --kernels tiled_csl --layers 28672x7168 --tokens 16 "
    "--most 40": GPU,
    "python benchmarks/gpu/spmm.py --speed --layers 28672x7168 --tokens 16 --sparsity 80": GPU,
    "python benchmarks/gpu/spmm.py --profile": GPU,
    "python benchmarks/gpu/spmm.py --speed --format tiled_bitmap "
    "--layers 28672x7168,4096x14336,8192x8192,28672x4096 --sparsity 50,80 "
    "--tokens 128,256,512,1024,2048,4096": GPU,
    "python benchmarks/gpu/eval.py --shape llama-3-8b": GPU,
    "python benchmarks/gpu/far.py --layers 128256x4096,151936x5120 "
    '--kinds "head, int8;head, fp8"': GPU,
    "python benchmarks/gpu/serve.py": GPU,
    "python benchmarks/gpu/serve.py --traffic mixed --clients 8 64": GPU,
    "python benchmarks/gpu/serve.py --model opt-66b --gpus 2 --dummy": GPU,
    "python benchmarks/gpu/serve.py --model llama-3-70b --gpus 2 --dummy --compare fewer": GPU,
    "python benchmarks/gpu/serve.py --dummy --together --compare patterns --traffic "
    "decoding=1,16 prompts=1": GPU,
    "python benchmarks/gpu/serve.py --compare attention --prompt 1024": GPU,
    "python benchmarks/gpu/serve.py --model tiny --eager": SERVER,
    "vllm serve MODEL --decode-attention unified_max": SERVER,
    "vllm serve MODEL --additional-config "
    """'{"flashsparse": {"decode_kernels": "default"}}'""": SERVER,
    "vllm serve ./SmolLM2-packed": SERVER,
    "vllm serve ./SmolLM2-pruned --sparse-method auto": SERVER,
    "vllm serve ./SmolLM2 --decode-attention unified_max": SERVER,
    "vllm serve ./Llama-3-70B-packed --tensor-parallel-size 4": SERVER,
    "vllm serve RedHatAI/Sparse-Llama-3.1-8B-2of4 --sparse-method auto": SERVER,
    "vllm serve RedHatAI/Sparse-Llama-3.1-8B-2of4 --sparse-method 2:4-fp8": SERVER,
    "vllm serve ./Llama-2of4 --sparse-method 2:4-fp8": SERVER,
    "vllm serve ./Llama-2of4 --sparse-method 2:4": SERVER,
    "vllm serve ./Llama-2of4 --sparse-method 2:4-int8": SERVER,
    "flashsparse convert path/to/pruned path/to/packed-for-h200 --format auto --for H200 "
    "--batch 16": "no layer of a tiny model gains on a GPU: tests/checkpoint/test_choosing.py",
    "flashsparse convert MODEL OUT --format 2:4": FOREIGN,
    "flashsparse prune MODEL OUT --mask mask_compressed.npz": "wants masks: "
    "tests/pruning/test_maskllm.py",
    "flashsparse inspect ORG/NAME": HUB,
    "flashsparse prune ORG/NAME@v1.0 pruned --method magnitude --sparsity 0.6": HUB,
    "flashsparse convert pruned packed --push ME/NAME-sparse": HUB,
}
# By the first line of the block.
CODE_NOT_RUN = {
    "from flashsparse_plugin.dataflow import Weight, resolve": GPU,
    "import flashsparse_plugin as fs\n\nllm = fs.LLM(": "starts vLLM: tests/vllm/test_models.py",
    "from vllm import LLM": "starts vLLM: tests/vllm/test_models.py",
}
CODE_ELSEWHERE = ["adding-a-format.md"]  # tests/formats/test_contract.py

PROGRAMS = ("flashsparse", "make", "pip", "python", "vllm")
TEXT_OF = {  # by name, with that of a folder in docs/
    str(document.relative_to(ROOT)).removeprefix("docs/"): document.read_text()
    for document in DOCUMENTS
}
every_document = pytest.mark.parametrize("document", TEXT_OF)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A folder with the models and texts that the documents speak of, named as there."""
    place = tmp_path_factory.mktemp("documents")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(**sizes, **heads, **ends, vocab_size=VOCAB, max_position_embeddings=1024)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(place / "path/to/dense")
    character_tokenizer().save_pretrained(place / "path/to/dense")
    for name in ("MODEL", "SmolLM2-135M-Instruct"):
        (place / name).symlink_to(place / "path/to/dense")
    letters = torch.randint(97, 123, (80_000,)).tolist()
    for name in ("text.txt", "tinyshakespeare.txt", "held-out.txt"):
        (place / name).write_text("".join(map(chr, letters)))
    return place


@pytest.fixture
def place(named, tmp_path):
    """The same for one document, which may write beside them what others write, too."""
    for path in (
        "path/to/dense",
        "MODEL",
        "SmolLM2-135M-Instruct",
        "text.txt",
        "tinyshakespeare.txt",
        "held-out.txt",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(named / path)
    return tmp_path


def runnable(document: str) -> list[str]:
    return [command for command in commands(TEXT_OF[document]) if command not in NOT_RUN]


# One document of those that show the same commands.
ONE_OF_ALIKE = {tuple(runnable(name)): name for name in TEXT_OF if runnable(name)}


@pytest.mark.slow
@pytest.mark.parametrize("document", ONE_OF_ALIKE.values())
def test_commands_run_as_written(document, place, monkeypatch):
    monkeypatch.chdir(place)
    for command in runnable(document):
        program, *arguments = shlex.split(command)
        assert program == "flashsparse", f"{command!r} of {document} is neither run nor listed"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{command}: {result.stderr}"


def code_of(document: str) -> list[str]:
    code = [] if document in CODE_ELSEWHERE else blocks(TEXT_OF[document], "python")
    return [block for block in code if not block.startswith(tuple(CODE_NOT_RUN))]


@pytest.mark.parametrize("document", [name for name in TEXT_OF if code_of(name)])
def test_code_runs_as_written(document, place, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path / "cache"))
    names = {"torch": torch, "AutoModelForCausalLM": AutoModelForCausalLM}
    # Of docs/attention.md's:
    names |= {"path": place / "path/to/dense", "head_dim": 128, "scale": 128**-0.5}
    names |= {"kv_cache": torch.randn(4, 8, 16, 256).half()}
    names |= {"block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)}
    names |= {"seq_lens": torch.tensor([30, 7], dtype=torch.int32)}
    # Of docs/pruning.md's and docs/recover.md's:
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))
    names |= {"windows": torch.randint(3, VOCAB, (4, 128))}
    if document == "pruning.md":
        names["model"] = AutoModelForCausalLM.from_pretrained(place / "path/to/dense")
    if document == "README.md":
        how = ["--method", "magnitude", "--pattern", "2:4"]
        result = CliRunner().invoke(app, ["prune", "path/to/dense", "path/to/pruned", *how])
        assert result.exit_code == 0, result.stderr
    for block in code_of(document):
        exec(compile(block, document, "exec"), names)
    if document == "README.md":
        assert type(names["model"].model.layers[0].mlp.up_proj).__name__ == "SparseLinear"
    if document == "recover.md":
        assert all(fit.after < fit.before for fit in names["fits"])
    if document == "attention.md":
        assert names["model"].config._attn_implementation == "unified_max"
        assert names["out"].shape == (2, 32, 128)


def test_what_is_not_run_is_in_a_document():
    assert NOT_RUN.keys() - set(SHOWN) == set()
    code = "\n".join(block for text in TEXT_OF.values() for block in blocks(text, "python"))
    assert [first for first in CODE_NOT_RUN if first not in code] == []


@every_document
def test_commands_are_where_they_are_looked_for(document):
    """In blocks of bash and console, and not in one without a language."""
    for block in blocks(TEXT_OF[document], "", "sh", "shell", "text"):
        for line in block.splitlines():
            assert not re.match(rf"(\$ )?({'|'.join(PROGRAMS)}) ", line), line


@every_document
def test_options_and_targets_that_a_document_names_exist(document):
    text = TEXT_OF[document]
    known = get_command(app).commands
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in [*commands(text), *inline(text)]:
        program, *arguments = re.split(r"\s+", command)
        named = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        if program == "flashsparse" and arguments:
            params = known[arguments[0]].params
            options = {name for each in params for name in (*each.opts, *each.secondary_opts)}
            assert named <= options, command
        elif program == "make" and arguments:
            assert arguments[0] in targets, command
        elif program == "python" and arguments and arguments[0].endswith(".py"):
            file = ROOT / arguments[0]
            sources = [file, *file.parent.glob("_*.py")]
            words = re.findall(r'"([\w-]+)"', "\n".join(map(Path.read_text, sources)))
            assert {name.removeprefix("--") for name in named} <= {w.strip("-") for w in words}
