#!/usr/bin/env bash
# mlx-lm on the CPU in a venv of its own, cached by version and linked as .venv-mlx-lm.
# usage: install.sh LINK        e.g. install.sh .venv-mlx-lm
set -euo pipefail
link=$1
mlx=0.32.4
mlx_lm=0.32.2
python=${PYTHON311:-python3.11}
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/mlx-lm-$mlx_lm
if [ ! -e "$venv/.installed" ]; then
  command -v "$python" >/dev/null || python=python3
  mkdir -p "$cache" && rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip --quiet --disable-pip-version-check install "mlx[cpu]==$mlx" "mlx-lm==$mlx_lm"
  touch "$venv/.installed"
fi
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("mlx-lm", m.version("mlx-lm"), "mlx", m.version("mlx"))'
