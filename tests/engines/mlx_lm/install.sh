#!/usr/bin/env bash
# mlx-lm on the CPU in a venv of its own, cached by version and linked as .venv-mlx-lm.
# usage: install.sh LINK        e.g. install.sh .venv-mlx-lm
set -euo pipefail
link=$1
mlx_lm=0.32.2
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/mlx-lm-$mlx_lm
MLX=0.32.4 bash "$(dirname "$0")/../../../pytest_specdec/engines/environments/mlx_lm.sh" "$mlx_lm" "$venv"
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("mlx-lm", m.version("mlx-lm"), "mlx", m.version("mlx"))'
