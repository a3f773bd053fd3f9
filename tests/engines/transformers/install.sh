#!/usr/bin/env bash
# `transformers serve` on the CPU in a venv of its own, cached by version and linked as .venv-transformers; the project's venv never holds torch.
# usage: install.sh LINK        e.g. install.sh .venv-transformers
set -euo pipefail
link=$1
transformers=5.23.0
torch=2.13.0+cpu # a local version: no CUDA build can satisfy it
python=${PYTHON311:-python3.11}
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/transformers-$transformers
if [ ! -e "$venv/.installed" ]; then
  command -v "$python" >/dev/null || python=python3
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the CPU torch wheel is for python 3.11: set PYTHON311")'
  mkdir -p "$cache" && rm -rf "$venv"
  "$python" -m venv "$venv"
  pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
  pip install --upgrade pip
  pip install "torch==$torch"
  # Its own extra `serving` brings a web interface of other packages; the server imports these, and accelerate to place the weights.
  pip install "transformers==$transformers" "torch==$torch" accelerate fastapi openai uvicorn
  touch "$venv/.installed"
fi
ln -sfn "$venv" "$link"
"$link/bin/python" -c 'import importlib.metadata as m; print("transformers", m.version("transformers"), "torch", m.version("torch"))'
