# SPDX-License-Identifier: Apache-2.0
"""PEP 517 backend: scikit-build-core, plus the two things it cannot know.

1. Which torch to compile against. torch is no build requirement (an isolated build would download
   several GB of it), so the headers of the environment that pip installs *into* are used. Inside
   build isolation `sysconfig` still describes that environment, so torch is found by path and is
   never imported.
2. What an editable install must not expose. scikit-build-core writes the repository root into a
   .pth file, which would turn `tests`, `kernels` and `integrations` into global packages; its
   import hook finds our modules without that line.
"""

import base64
import hashlib
import os
import sys
import sysconfig
import zipfile

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# Appeared with torch 2.11's stable ABI; older versions cannot build us.
_NEEDED_HEADER = os.path.join("include", "torch", "csrc", "stable", "library.h")


def find_torch() -> str:
    """Returns the `site-packages/torch` folder to compile against."""
    explicit = os.environ.get("FLASHSPARSE_TORCH_ROOT")
    if explicit:
        folders = [explicit]
    else:
        roots = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *sys.path]
        folders = list(dict.fromkeys(os.path.join(root, "torch") for root in roots if root))
    for folder in folders:
        if os.path.isfile(os.path.join(folder, _NEEDED_HEADER)):
            return folder
    raise SystemExit(
        "flashsparse-plugin compiles against the torch of this environment and found none "
        "(torch >= 2.11 is needed).\n"
        f"  looked in: {', '.join(folders)}\n"
        "  remedy:    pip install 'torch>=2.11'   and then install flashsparse-plugin again,\n"
        "             or set FLASHSPARSE_TORCH_ROOT to a site-packages/torch folder."
    )


def _with_torch(config_settings):
    settings = dict(config_settings or {})
    settings.setdefault("cmake.define.TORCH_ROOT", find_torch())
    return settings


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_wheel(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = _backend.build_editable(
        wheel_directory, _with_torch(config_settings), metadata_directory
    )
    _keep_only_import_lines(os.path.join(wheel_directory, name))
    return name


def _keep_only_import_lines(wheel_path: str) -> None:
    """Drops the search-path lines of the wheel's .pth file and mends its RECORD."""
    with zipfile.ZipFile(wheel_path) as wheel:
        files = {info.filename: wheel.read(info) for info in wheel.infolist()}
    pth = next(name for name in files if name.endswith(".pth"))
    lines = files[pth].splitlines(keepends=True)
    files[pth] = b"".join(line for line in lines if line.startswith(b"import "))
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[pth]).digest()).rstrip(b"=").decode()
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    files[record] = "".join(
        f"{pth},sha256={digest},{len(files[pth])}\n" if line.startswith(pth + ",") else line
        for line in files[record].decode().splitlines(keepends=True)
    ).encode()
    with zipfile.ZipFile(wheel_path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
