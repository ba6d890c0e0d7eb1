#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of a release: wheels.sh BIN STACK, the folder with pip and auditwheel, and cpu or
# cuda for the torch of the trials. One wheel holds the kernels for CPUs and for every architecture
# of GPUs, and serves every Python and every torch that pyproject.toml admits. It is in dist/ only
# after it was tried in an empty environment of each Python of PYTHONS that this machine has.
#
# The newest symbol of glibc decides where the wheel installs, and that is the build machine's: on
# Debian 12 manylinux_2_34 (Ubuntu 22.04, Debian 12, RHEL 9 and later).
set -euo pipefail
bin=$(realpath "${1:?usage: wheels.sh BIN STACK}")
stack=${2:?usage: wheels.sh BIN STACK}
cd "$(dirname "$0")/.."
pythons=${PYTHONS:-python3.11 python3.12 python3.13 python3.14}
work=build/wheels
rm -rf "$work"
mkdir -p "$work" dist

FLASHSPARSE_CUDA=${FLASHSPARSE_CUDA:-ON} "$bin/pip" --disable-pip-version-check wheel --quiet \
  --no-deps --no-build-isolation --wheel-dir "$work/built" .
# libtorch is in the process before us, whichever it is: no copy of it may go into the wheel.
PATH="$bin:$PATH" "$bin/auditwheel" repair --exclude 'libtorch*' --exclude 'libc10*' \
  --wheel-dir "$work" "$work"/built/*.whl
wheel=$(echo "$work"/*.whl)

tried=
for python in $pythons; do
  if ! "$python" -c 'import venv' 2>/dev/null; then
    echo "$python: not on this machine, not tried"
    continue
  fi
  "$python" -m venv --clear "$work/venv"
  "$work/venv/bin/pip" --disable-pip-version-check install --quiet -r "requirements/torch-$stack.txt"
  "$work/venv/bin/pip" --disable-pip-version-check install --quiet "$wheel[hf]"
  (cd "$work" && venv/bin/flashsparse doctor >doctor.txt) || {
    cat "$work/doctor.txt"
    echo "$wheel does not work with $python" >&2
    exit 1
  }
  (cd "$work" && venv/bin/python - <<'PYTHON'
import torch

import flashsparse_plugin as fs

weight = torch.randn(64, 256, dtype=torch.bfloat16)
weight[torch.rand(64, 256) < 0.7] = 0
packed = fs.pack(weight, format="tiled_csl")
assert torch.equal(packed.unpack(), weight)
x = torch.randn(3, 256)
torch.testing.assert_close(packed.linear(x), x @ weight.float().T, rtol=1e-4, atol=1e-4)
PYTHON
  )
  echo "$python: installed, examined by doctor, multiplied"
  tried=yes
done
rm -rf "$work/venv"
[[ -n $tried ]] || {
  echo "none of $pythons is on this machine: the wheel was not tried" >&2
  exit 1
}
mv "$wheel" dist/
ls -lh "dist/$(basename "$wheel")"
