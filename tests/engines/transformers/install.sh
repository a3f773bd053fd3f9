#!/usr/bin/env bash
# `transformers serve` on the CPU in a venv of its own, cached by version and linked as .venv-transformers; the project's venv never holds torch.
# usage: install.sh LINK        e.g. install.sh .venv-transformers
set -euo pipefail
link=$1
transformers=5.23.0
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/transformers-$transformers
bash "$(dirname "$0")/../../../pytest_specdec/engines/environments/transformers.sh" "$transformers" "$venv"
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("transformers", m.version("transformers"), "torch", m.version("torch"))'
